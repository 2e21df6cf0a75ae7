"""The public import path of the global configuration."""

from __future__ import annotations

from nemo_gym.config.global_dict import (
    GlobalConfigDictParser,
    GlobalConfigDictParserConfig,
    find_open_port,
    get_first_server_config_dict,
    get_global_config_dict,
    get_hf_token,
    maybe_get_global_config_dict,
    set_global_config_dict,
)
from nemo_gym.config.roots import component_search_roots
from nemo_gym.records.keys import AGENT_REF as AGENT_REF_KEY_NAME
from nemo_gym.records.keys import ATTEMPT_INDEX as ATTEMPT_INDEX_KEY_NAME
from nemo_gym.records.keys import CONFIG_DICT_ENV as NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME
from nemo_gym.records.keys import CONFIG_PATH_ENV as NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME
from nemo_gym.records.keys import MODEL_CALL_CAPTURE_DIR as MODEL_CALL_CAPTURE_DIR_KEY_NAME
from nemo_gym.records.keys import OBSERVABILITY_ENABLED as OBSERVABILITY_ENABLED_KEY_NAME
from nemo_gym.records.keys import RESPONSE as RESPONSE_KEY_NAME
from nemo_gym.records.keys import RESPONSES_CREATE_PARAMS as RESPONSES_CREATE_PARAMS_KEY_NAME
from nemo_gym.records.keys import REWARD as REWARD_KEY_NAME
from nemo_gym.records.keys import ROLLOUT_ID as ROLLOUT_ID_KEY_NAME
from nemo_gym.records.keys import ROLLOUT_INDEX as ROLLOUT_INDEX_KEY_NAME
from nemo_gym.records.keys import SKILLS_REF as SKILLS_REF_KEY_NAME
from nemo_gym.records.keys import TASK_INDEX as TASK_INDEX_KEY_NAME
from nemo_gym.records.keys import TASK_SOURCE as TASK_SOURCE_KEY_NAME

CONFIG_PATHS_KEY_NAME = "config_paths"
ENTRYPOINT_KEY_NAME = "entrypoint"
DEFAULT_HOST_KEY_NAME = "default_host"
HEAD_SERVER_KEY_NAME = "head_server"
DISALLOWED_PORTS_KEY_NAME = "disallowed_ports"
PORT_RANGE_LOW_KEY_NAME = "port_range_low"
PORT_RANGE_HIGH_KEY_NAME = "port_range_high"
DRY_RUN_KEY_NAME = "dry_run"
HF_TOKEN_KEY_NAME = "hf_token"
CACHE_DIR_KEY_NAME = "cache_dir"
RESULTS_DIR_KEY_NAME = "results_dir"
POLICY_BASE_URL_KEY_NAME = "policy_base_url"
POLICY_API_KEY_KEY_NAME = "policy_api_key"
POLICY_MODEL_NAME_KEY_NAME = "policy_model_name"
POLICY_MODEL_KEY_NAME = "policy_model"

__all__ = [
    "AGENT_REF_KEY_NAME",
    "ATTEMPT_INDEX_KEY_NAME",
    "CACHE_DIR_KEY_NAME",
    "CONFIG_PATHS_KEY_NAME",
    "DEFAULT_HOST_KEY_NAME",
    "DISALLOWED_PORTS_KEY_NAME",
    "DRY_RUN_KEY_NAME",
    "ENTRYPOINT_KEY_NAME",
    "HEAD_SERVER_KEY_NAME",
    "HF_TOKEN_KEY_NAME",
    "MODEL_CALL_CAPTURE_DIR_KEY_NAME",
    "NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME",
    "NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME",
    "OBSERVABILITY_ENABLED_KEY_NAME",
    "POLICY_API_KEY_KEY_NAME",
    "POLICY_BASE_URL_KEY_NAME",
    "POLICY_MODEL_KEY_NAME",
    "POLICY_MODEL_NAME_KEY_NAME",
    "PORT_RANGE_HIGH_KEY_NAME",
    "PORT_RANGE_LOW_KEY_NAME",
    "RESPONSES_CREATE_PARAMS_KEY_NAME",
    "RESPONSE_KEY_NAME",
    "RESULTS_DIR_KEY_NAME",
    "REWARD_KEY_NAME",
    "ROLLOUT_ID_KEY_NAME",
    "ROLLOUT_INDEX_KEY_NAME",
    "SKILLS_REF_KEY_NAME",
    "TASK_INDEX_KEY_NAME",
    "TASK_SOURCE_KEY_NAME",
    "GlobalConfigDictParser",
    "GlobalConfigDictParserConfig",
    "component_search_roots",
    "find_open_port",
    "get_first_server_config_dict",
    "get_global_config_dict",
    "get_hf_token",
    "maybe_get_global_config_dict",
    "set_global_config_dict",
]
