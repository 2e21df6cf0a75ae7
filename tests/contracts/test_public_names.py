"""The import paths that users write: they exist, import without a warning, and cost little."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

DOORS = [
    "base_resources_server",
    "base_responses_api_agent",
    "base_responses_api_model",
    "config_types",
    "core.failure_kinds",
    "episode_types",
    "failure_kinds",
    "global_config",
    "judge",
    "openai_utils",
    "prompt",
    "reward_profile",
    "rollout_collection",
    "rollout_correlation",
    "rollout_health",
    "rollout_observability",
    "rollouts",
    "mcp_auto_exposure",
    "server_utils",
    "testing.session_conformance",
    "utils.path_utils",
    "verifier_fixture",
]

NAMES = {
    "base_resources_server": [
        *("SimpleResourcesServer", "BaseVerifyRequest", "BaseResourcesServerConfig", "BaseVerifyResponse"),
        *("BaseRunRequest", "BaseSeedSessionResponse", "BaseSeedSessionRequest", "ReverifyMode"),
        *("ResourcesSeedSessionRequest", "ResourcesSeedSessionResponse", "ResourcesCloseSessionRequest"),
        *("ResourcesCloseSessionResponse", "BaseMultiRewardVerifyResponse", "AggregateMetrics"),
        *("AggregateMetricsRequest", "NeMoGymResponse", "NeMoGymResponseCreateParamsNonStreaming"),
        "compute_aggregate_metrics",
    ],
    "base_responses_api_agent": [
        *("SimpleResponsesAPIAgent", "BaseResponsesAPIAgentConfig", "Body", "AgentSession", "DirectHttpToolAccess"),
        *("AgentSeedSessionRequest", "AgentSeedSessionResponse", "AgentCloseSessionRequest"),
        *("AgentCloseSessionResponse", "McpToolAccess"),
    ],
    "base_responses_api_model": [
        *("CaptureStore", "aggregate_model_call_metrics", "read_model_call_records", "SimpleResponsesAPIModel"),
        *("BaseResponsesAPIModelConfig", "ModelCallRecord", "ModelCallCaptureConfig", "make_capture_store"),
        *("install_model_call_capture", "model_call_capture_dirs_from_config", "observability_enabled_from_config"),
        *("clear_model_call_captures_for_rollouts", "merge_model_call_capture_into_record"),
        *("read_available_model_call_records", "aggregate_model_call_records", "build_model_call_record"),
        "await_model_call_capture_quiescence",
    ],
    "openai_utils": [
        *("NeMoGymResponse", "NeMoGymResponseCreateParamsNonStreaming", "NeMoGymEasyInputMessage"),
        *("NeMoGymChatCompletion", "NeMoGymChatCompletionCreateParamsNonStreaming"),
        *("NeMoGymResponseFunctionToolCall", "NeMoGymFunctionCallOutput", "NeMoGymResponseOutputItem"),
        *("RETRY_ERROR_CODES", "RATE_LIMIT_ERROR_CODES", "NeMoGymAsyncOpenAI", "NeMoGymResponseOutputMessage"),
        *("NeMoGymResponseOutputText", "NeMoGymResponseReasoningItem", "NeMoGymSummary"),
        *("NeMoGymResponseOutputRefusal", "NeMoGymChatCompletionMessage", "NeMoGymChoice"),
        *("NeMoGymResponseUsage", "accumulate_response_usage"),
    ],
    "config_types": [
        *("ModelServerRef", "ResourcesServerRef", "AgentServerRef", "Domain", "BaseServerConfig"),
        *("AggregateMetrics", "AggregateMetricsRequest", "ConfigError"),
        *("UnsupportedAgentPairingError", "UnsupportedModelPairingError"),
    ],
    "server_utils": [
        *("SESSION_ID_KEY", "ServerClient", "get_response_json", "raise_for_status", "request", "get_server_url"),
        *("is_nemo_gym_fastapi_entrypoint", "rollout_path_prefix", "get_first_server_config_dict"),
        *("get_global_config_dict", "BaseServerConfig", "BaseRunServerInstanceConfig", "ClientResponse"),
    ],
    "reward_profile": [
        *("compute_pass_majority_metrics", "highest_k_metrics", "compute_subset_metrics"),
        *("add_avg_sample_std_dev", "compute_aggregate_metrics", "AggregateMetricsMixin", "compute_perf_summary"),
    ],
    "verifier_fixture": ["VerifierFixture", "VerifierFixtureError", "exercise_verifier_fixture"],
    "testing.session_conformance": ["check_resources_session_contract"],
    "judge": ["call_judge", "JudgeError", "reraise_judge_errors", "judge_failsafe"],
    "prompt": ["load_prompt_config", "PromptConfig", "fill_prompt", "apply_prompt_to_row"],
    "global_config": [
        *("get_global_config_dict", "get_first_server_config_dict", "GlobalConfigDictParser"),
        *("GlobalConfigDictParserConfig", "TASK_INDEX_KEY_NAME", "ROLLOUT_INDEX_KEY_NAME", "HF_TOKEN_KEY_NAME"),
        *("maybe_get_global_config_dict", "ATTEMPT_INDEX_KEY_NAME", "AGENT_REF_KEY_NAME", "CACHE_DIR_KEY_NAME"),
    ],
    "rollout_correlation": [
        *("RolloutContextMiddleware", "rollout_context", "current_rollout_id", "maybe_rollout_id_from_run_body"),
    ],
    "rollouts": ["RolloutCollectionHelper", "attach_evidence", "RolloutFailureRecord", "RolloutCollectionConfig"],
    "rollout_collection": ["RolloutCollectionHelper", "RolloutCollectionConfig", "DispatchLatencyTracker"],
    "rollout_health": ["run_health_checks", "CHECK_REGISTRY", "Finding", "HealthCheckResult", "Verdict"],
    "health.checks": ["CHECK_REGISTRY", "normalize_ignored_checks"],
    "health.types": ["CheckSpec", "CheckScope", "CheckSubject", "CheckInput", "Finding", "RolloutDigest", "Verdict"],
    "rollouts.health.checks": ["CHECK_REGISTRY", "normalize_ignored_checks"],
    "rollouts.health.types": ["CheckSpec", "CheckInput", "Finding", "RolloutDigest", "Verdict"],
    "rollout_observability": ["AgentObservationBundle", "SandboxObservation", "TrajectoryRecord", "ModelCallRef"],
    "episode_types": ["EpisodeId", "TaskId"],
    "core.failure_kinds": [
        *("FAILURE_KINDS", "FailureStage", "is_registered", "is_namespaced", "validate_failure_kind", "CANCELLED"),
    ],
    "utils.path_utils": ["failures_path_for", "materialized_path_for", "aggregate_metrics_path_for"],
    "sandbox": [
        *("AsyncSandbox", "SandboxSpec", "SandboxResources", "create_provider", "SandboxCreateError"),
        *("resolve_provider_config", "resolve_provider_metadata", "rewrite_image", "AsyncSandboxCompose"),
    ],
    "sandbox.config": ["resolve_provider_config", "resolve_provider_metadata"],
    "sandbox.utils": ["cpu_cap_env"],
    "sandbox.access": ["SandboxAccess", "DirectSandboxConnection"],
    "sandbox.providers.base": ["ConnectableProvider"],
}

LAZY = [
    *("SimpleResourcesServer", "SimpleResponsesAPIAgent", "SimpleResponsesAPIModel", "BaseVerifyRequest"),
    *("ServerClient", "raise_for_status", "get_response_json", "SESSION_ID_KEY", "BaseServerConfig", "Domain"),
    *("AggregateMetrics", "ModelServerRef", "NeMoGymAsyncOpenAI", "NeMoGymResponse", "ReverifyMode", "PARENT_DIR"),
    *("NeMoGymResponseCreateParamsNonStreaming", "NeMoGymChatCompletion", "ROOT_DIR", "WORKING_DIR", "CACHE_DIR"),
    "component_search_roots",
]


@pytest.mark.parametrize("module", NAMES)
def test_the_names_that_users_import_exist(module: str) -> None:
    door = importlib.import_module(f"nemo_gym.{module}")
    assert [name for name in NAMES[module] if not hasattr(door, name)] == []


def test_the_package_itself_offers_its_names_lazily() -> None:
    import nemo_gym

    assert [name for name in LAZY if getattr(nemo_gym, name, None) is None] == []
    assert set(LAZY) <= set(dir(nemo_gym))
    with pytest.raises(AttributeError):
        nemo_gym.no_such_name  # noqa: B018


@pytest.mark.parametrize("module", DOORS)
def test_each_door_imports_alone_and_without_a_warning(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import nemo_gym.{module}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("nemo_gym", ["pydantic", "fastapi", "openai", "aiohttp", "omegaconf", "msgspec", "typer"]),
        ("nemo_gym.cli.main", ["pydantic", "fastapi", "openai", "aiohttp", "omegaconf", "rich"]),
        ("nemo_gym.base_responses_api_model", ["openai", "nemo_gym.rollouts"]),
        ("nemo_gym.rollouts", ["fastapi", "openai"]),
        ("nemo_gym.rollout_health", ["fastapi", "openai", "aiohttp"]),
    ],
)
def test_an_import_loads_only_what_it_needs(module: str, heavy: list[str]) -> None:
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
