"""Names of the global configuration: every key that this package reads, and the defaults of its own settings.

A key that is in none of these tables, that no interpolation reads and that is no server instance is a mistake; see
`checks.unknown_keys`.
"""

from __future__ import annotations

from nemo_gym.records import keys


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONFIG_PATHS = "config_paths"
HEAD_SERVER = "head_server"
DEFAULT_HOST = "default_host"
PORT_RANGE_LOW = "port_range_low"
PORT_RANGE_HIGH = "port_range_high"
DISALLOWED_PORTS = "disallowed_ports"
ALLOW_UNSUPPORTED_PAIRING = "allow_unsupported_pairing"
ALLOW_UNSUPPORTED_PAIRING_ENV = "NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING"
ERROR_ON_ALMOST_SERVERS = "error_on_almost_servers"
SPINUP_TIMEOUT = "server_spinup_timeout_seconds"
ENDPOINT_TIMEOUT = "model_endpoint_readiness_timeout_seconds"
LOG_DIR = "nemo_gym_log_dir"

MODELS, RESOURCES, AGENTS, ENVIRONMENTS = keys.SERVER_KINDS
LEGACY_AGENT = "legacy_agent"
"""The implementation of an environment-server block that only names a route; it starts no process."""

INHERIT_FROM = "_inherit_from"
COPY = "_copy"
DELETE_KEY = "_delete_key"

POLICY_MODEL = "policy_model"
MODEL_VALUES = ("policy_base_url", "policy_api_key", "policy_model_name")

DEFAULT_HEAD_PORT = 11000
DEFAULT_PORT_RANGE = (10001, 20000)
DEFAULT_SPINUP_TIMEOUT_S = 600

DOMAINS = (
    "math",
    "coding",
    "agent",
    "knowledge",
    "instruction_following",
    "long_context",
    "safety",
    "games",
    "translation",
    "e2e",
    "rlhf",
    "other",
)

RESERVED_KEYS = _words(
    """
    config_paths entrypoint default_host head_server disallowed_ports head_server_deps python_version
    pip_install_verbose use_absolute_ip uv_pip_set_python skip_venv_if_present hf_token ray_head_node_address
    port_range_low port_range_high dry_run server_spinup_timeout_seconds model_endpoint_readiness_timeout_seconds
    allow_openai_version_skew uv_cache_dir uv_lock_timeout_seconds uv_venv_dir results_dir cache_dir _inherit_from
    _copy nemo_gym_log_dir verbose json query observability_enabled model_call_capture_dir token_id_capture
    model_call_capture_archive server_token
    component_name skip_verification skip_verification_reward telemetry allow_unsupported_pairing
    environment_server_name environment_server_routes environment_routing_mode error_on_almost_servers
    error_on_agent_without_environment_server profiling_enabled profiling_results_dirpath help h
    """
)

COLLECTION_KEYS = _words(
    """
    output_jsonl_fpath require_complete num_samples_in_parallel max_resident_rollout_tasks retain_results_in_memory
    responses_create_params disable_aggregation disable_health_check health_check_workers health_check_ignored_checks
    count_failure_classes_as_zero count_missing_rollouts_as_zero route_failures_to_sidecar rollout_collection_driver
    upload_rollouts upload_rollouts_to_wandb input_jsonl_fpath agent_name agent_map fan_out limit num_repeats
    num_repeats_add_seed interleave_repeats resume_from_cache prompt_config skills dispatch_budget_s drain_margin_s
    dispatch_longest_first retry_terminal_timeouts retry_invalid_judge_responses record_omitted_rollouts split
    reuse_existing_data_preparation input_glob merge_shards materialized_inputs_jsonl_fpath rollouts_jsonl_fpath
    allow_partial_rollouts rollout_timeout_s connection_retries rollout_retries
    use_cached_prepared_benchmarks num_prepare_benchmark_processes prepare_script_args should_validate_data
    """
)

EXPORTER_KEYS = _words(
    "wandb_project wandb_name wandb_api_key wandb_entity mlflow_tracking_uri mlflow_tracking_token mlflow_experiment "
    "mlflow_run_name exporters"
)

KNOWN_PREFIXES = ("uvicorn_", "global_aiohttp_", "wandb_", "mlflow_")
"""Top-level keys that begin like this tune the HTTP stack or an exporter."""

KNOWN_TOP_LEVEL_KEYS = RESERVED_KEYS | COLLECTION_KEYS | EXPORTER_KEYS | frozenset(MODEL_VALUES)

IGNORED_KEYS = EXPORTER_KEYS | _words(
    """
    head_server_deps python_version pip_install_verbose uv_pip_set_python skip_venv_if_present
    allow_openai_version_skew uv_cache_dir uv_lock_timeout_seconds uv_venv_dir telemetry profiling_enabled
    profiling_results_dirpath json query upload_rollouts upload_rollouts_to_wandb use_cached_prepared_benchmarks
    num_prepare_benchmark_processes prepare_script_args should_validate_data
    """
)
"""Known keys on which nothing that is shipped acts: no environments are installed, nothing is uploaded or profiled.
So is every key of `KNOWN_PREFIXES`."""

BLOCK_KEYS = _words(
    """
    entrypoint host port num_workers domain description verified verified_url value allowed_agents
    allowed_model_types datasets expose_tools_over_mcp name license taskset resources_server model_server agent_server
    skip_verification skip_verification_reward
    """
)
"""Keys that any implementation block may carry, whether its config class declares them or not."""
