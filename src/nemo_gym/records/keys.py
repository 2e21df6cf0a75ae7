"""Every key name that is on disk or on the wire, once."""

from __future__ import annotations

# Identity of a row and of its record.
TASK_INDEX = "_ng_task_index"
ROLLOUT_INDEX = "_ng_rollout_index"
ATTEMPT_INDEX = "_ng_attempt_index"
ROLLOUT_ID = "_ng_rollout_id"
RUN_ID = "_ng_run_id"
MATERIALIZED_TASK_ID = "_ng_task_id"
ENVIRONMENT_SERVER = "_ng_environment_server"
RESULT_TYPE = "_ng_result_type"
AGENT_REF = "agent_ref"
TASK_SOURCE = "task_source"
SKILLS_REF = "skills_ref"
STAGE_INDEX = "stage_index"
TRAJECTORY_IDENTITY = "trajectory_identity"

# What a row asks for and what comes back.
RESPONSES_CREATE_PARAMS = "responses_create_params"
RESPONSE = "response"
REWARD = "reward"
MASK_SAMPLE = "mask_sample"
FAILURE_KIND = "failure_kind"
FAILURE_REASON = "failure_reason"
ELAPSED_SECONDS = "elapsed_seconds"
ERROR_MESSAGE = "error_message"

# Evidence.
MODEL_CALL_CAPTURE = "ng_model_call_capture"
AGENT_OBSERVATIONS = "ng_agent_observations"
TRAJECTORY = "ng_trajectory"
PERF = "ng_perf"
PERF_DETAIL = "ng_perf_detail"
EVIDENCE_KEYS = (MODEL_CALL_CAPTURE, AGENT_OBSERVATIONS, TRAJECTORY)
PAYLOAD_KEYS = ("request", "response", "request_raw", "response_raw")

# Evidence that travels on an agent's Response between its own handlers, and is removed before verification.
PRIVATE_AGENT_OBSERVATIONS = "_ng_agent_observations"
PRIVATE_TRAJECTORY = "_ng_trajectory"

# How collection routes a reply, and what it writes into the failures sidecar.
FAILURE_CLASS = "_ng_failure_class"
FAILURE_TYPE = "_ng_failure_type"
FAILURE_MESSAGE = "_ng_failure_message"
FAILURE_HTTP_STATUS = "_ng_failure_http_status"
FAILURE_RESPONSE_BODY = "_ng_failure_response_body"
FAILURE_TERMINAL = "_ng_failure_terminal"
FAILURE_STAGE = "_ng_failure_stage"
FAILURE_PARTIAL_RESPONSE = "_ng_failure_partial_response"
FAILURE_JUDGE_ERROR = "_ng_failure_judge_error"
FAILED_AT = "_ng_failed_at"
FAILED_ROLLOUT = "ng_failed_rollout"
"""In the body of an agent's 4xx or 5xx: what it knows of the rollout, for the failure row."""
ROLLOUT_FAILURE = "_ng_rollout_failure"
NO_PERSIST = "_ng_no_persist"
DISPATCH_DRAINED = "_ng_dispatch_drained"
OMITTED_ROLLOUT = "_ng_omitted_rollout"
UNROUTED_RUN_ERROR = "_ng_unrouted_run_error"
PRIOR_FAILURES = "_ng_prior_failures"

# URL and headers.
ROLLOUT_PATH_PREFIX = "ng-rollout"
INVOCATION_PATH_SEGMENT = "inv"
TOKEN_CAPTURE_PATH_SEGMENT = "training-token-capture"
MODEL_CALL_ID_HEADER = "x-ng-model-call-id"
FAILED_SERVER_HEADER = "x-ng-failed-server"
"""On the answer to an unhandled exception: the name of the server that raised it."""
FAILED_AT_HEADER = "x-ng-failed-at"
"""On the same answer: the line of that server's code, and its log."""
SESSION_ID_HEADER = "x-session-id"
SERVER_TOKEN_HEADER = "x-ng-server-token"

# Global configuration.
OBSERVABILITY_ENABLED = "observability_enabled"
MODEL_CALL_CAPTURE_DIR = "model_call_capture_dir"
MODEL_CALL_CAPTURE_ARCHIVE = "model_call_capture_archive"

# Environment of a server process.
CONFIG_DICT_ENV = "NEMO_GYM_CONFIG_DICT"
CONFIG_PATH_ENV = "NEMO_GYM_CONFIG_PATH"
EXTRA_ROOTS_ENV = "NEMO_GYM_EXTRA_ROOTS"
SERVER_TOKEN_ENV = "NEMO_GYM_SERVER_TOKEN"
MAX_ATTEMPTS_ENV = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"

SERVER_KINDS = ("responses_api_models", "resources_servers", "responses_api_agents", "environment_servers")
