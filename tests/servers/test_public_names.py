from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import nemo_gym
from nemo_gym import failure_kinds

NAMES = {
    "base_resources_server": "AggregateMetrics AggregateMetricsRequest BaseMultiRewardVerifyResponse "
    "BaseResourcesServer BaseResourcesServerConfig BaseRunRequest BaseSeedSessionRequest BaseSeedSessionResponse "
    "BaseVerifyRequest BaseVerifyResponse MCPServerMetadata NeMoGymResponse NeMoGymResponseCreateParamsNonStreaming "
    "NEMO_GYM_MCP_METADATA_KEY NEMO_GYM_MCP_SESSION_TOKEN_HEADER RESERVED_MCP_TOOL_NAMES ResourcesCloseSessionRequest "
    "ResourcesCloseSessionResponse ResourcesSeedSessionRequest ResourcesSeedSessionResponse ResourcesVerifyRequest "
    "ReverifyMode SimpleResourcesServer compute_aggregate_metrics normalize_tool_name",
    "base_responses_api_agent": "BaseResponsesAPIAgent BaseResponsesAPIAgentConfig Body SimpleResponsesAPIAgent",
    "base_responses_api_model": "BaseResponsesAPIModel BaseResponsesAPIModelConfig Body CaptureStore "
    "ModelCallCaptureConfig ModelCallRecord SimpleResponsesAPIModel aggregate_model_call_metrics "
    "aggregate_model_call_records build_model_call_record clear_model_call_captures_for_rollouts "
    "install_model_call_capture make_capture_store model_call_capture_dirs_from_config "
    "observability_enabled_from_config read_available_model_call_records read_model_call_records",
    "config_types": "AGENT_REF_KEY AgentServerRef AggregateMetrics AggregateMetricsRequest BaseNeMoGymCLIConfig "
    "BaseRunServerConfig BaseRunServerInstanceConfig BaseRunServerTypeConfig BaseServerConfig BenchmarkDatasetConfig "
    "ConfigError DatasetConfig Domain EnvironmentServerRef ModelServerRef ROLLOUT_PATH_PREFIX ResourcesServerRef "
    "TOKEN_CAPTURE_PATH_SEGMENT is_almost_server is_server_ref maybe_get_server_instance_config",
    "episode_types": "BaseEpisodeRequest BaseEpisodeResponse EpisodeFailure EpisodeId MaterializedTask TaskId "
    "is_materialized_task_row",
    "failure_kinds": "FAILURE_KINDS FailureStage is_namespaced is_registered validate_failure_kind JUDGE_FAILED",
    "judge": "JudgeError call_judge judge_failsafe reraise_judge_errors",
    "prompt": "PromptConfig apply_prompt_to_row fill_prompt load_prompt_config materialize_prompts "
    "validate_prompt_compatibility",
    "server_utils": "MAX_NUM_TRIES BaseRunServerInstanceConfig BaseServerConfig ClientResponse ServerClient "
    "SESSION_ID_KEY SimpleServer apply_rollout_prefix get_first_server_config_dict get_global_aiohttp_client "
    "get_global_config_dict get_response_json get_server_url global_aiohttp_client_exit "
    "is_global_aiohttp_client_setup is_nemo_gym_fastapi_entrypoint raise_for_status request rollout_path_prefix "
    "set_global_aiohttp_client setup_server_client",
}


@pytest.mark.parametrize("module", sorted(NAMES))
def test_every_public_name_resolves_from_its_path(module: str) -> None:
    door = importlib.import_module(f"nemo_gym.{module}")
    for name in NAMES[module].split():
        assert getattr(door, name, None) is not None, name


def test_the_package_resolves_its_names_lazily() -> None:
    for name in nemo_gym.__all__:
        assert getattr(nemo_gym, name) is not None
        assert name in dir(nemo_gym)
    with pytest.raises(AttributeError, match="nonsense"):
        nemo_gym.nonsense  # noqa: B018


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(m.partition('.')[0] for m in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not {"pydantic", "fastapi", "aiohttp", "openai", "omegaconf", "orjson"} & loaded_by("import nemo_gym")


def test_a_model_server_that_only_proxies_loads_no_wire_types() -> None:
    assert "openai" not in loaded_by("import nemo_gym.base_responses_api_model")


def test_importing_the_package_prepares_the_process() -> None:
    shown = "os.environ['TOKENIZERS_PARALLELISM'], os.getcwd() in sys.path, os.environ['HF_HOME']"
    code = f"import os, sys, nemo_gym; print({shown})"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert said[:2] == ["false", "True"]
    assert said[2].endswith("huggingface")


def test_failure_kinds_are_registered_namespaced_or_warned_about() -> None:
    assert failure_kinds.is_registered("judge_failed")
    assert failure_kinds.is_namespaced("my_server2:odd_case")
    assert not failure_kinds.is_namespaced("My:case")
    assert len(failure_kinds.FAILURE_KINDS) == 22
    assert failure_kinds.validate_failure_kind("something_else") == "something_else"
