"""Door: the types of configuration."""

from __future__ import annotations

from nemo_gym.errors import (
    ConfigError,
    ConfigFileNotFoundError,
    UnsupportedAgentPairingError,
    UnsupportedModelPairingError,
)
from nemo_gym.records.keys import AGENT_REF as AGENT_REF_KEY
from nemo_gym.records.keys import ROLLOUT_PATH_PREFIX, TOKEN_CAPTURE_PATH_SEGMENT
from nemo_gym.servers.cli_config import BaseNeMoGymCLIConfig
from nemo_gym.servers.datasets import (
    BenchmarkDatasetConfig,
    DatasetConfig,
    GitlabSource,
    HuggingFaceSource,
    JsonlDatasetGitlabIdentifer,
    JsonlDatasetHuggingFaceIdentifer,
)
from nemo_gym.servers.metrics import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.servers.references import (
    AgentServerRef,
    EnvironmentServerRef,
    ModelServerRef,
    ResourcesServerRef,
    ServerRef,
    is_server_ref,
)
from nemo_gym.servers.server_config import (
    BaseRunServerConfig,
    BaseRunServerInstanceConfig,
    BaseRunServerTypeConfig,
    BaseServerConfig,
    Domain,
    EnvironmentServerInstanceConfig,
    EnvironmentServerTypeConfig,
    ResourcesServerInstanceConfig,
    ResourcesServerTypeConfig,
    ResponsesAPIAgentServerInstanceConfig,
    ResponsesAPIAgentServerTypeConfig,
    ResponsesAPIModelServerInstanceConfig,
    ResponsesAPIModelServerTypeConfig,
    ServerInstanceConfig,
    ServerInstanceConfigTypeAdapter,
    ServerTypeConfig,
    is_almost_server,
    maybe_get_server_instance_config,
)

__all__ = [
    "AGENT_REF_KEY",
    "ROLLOUT_PATH_PREFIX",
    "TOKEN_CAPTURE_PATH_SEGMENT",
    "AgentServerRef",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseNeMoGymCLIConfig",
    "BaseRunServerConfig",
    "BaseRunServerInstanceConfig",
    "BaseRunServerTypeConfig",
    "BaseServerConfig",
    "BenchmarkDatasetConfig",
    "ConfigError",
    "ConfigFileNotFoundError",
    "DatasetConfig",
    "Domain",
    "EnvironmentServerInstanceConfig",
    "EnvironmentServerRef",
    "EnvironmentServerTypeConfig",
    "GitlabSource",
    "HuggingFaceSource",
    "JsonlDatasetGitlabIdentifer",
    "JsonlDatasetHuggingFaceIdentifer",
    "ModelServerRef",
    "ResourcesServerInstanceConfig",
    "ResourcesServerRef",
    "ResourcesServerTypeConfig",
    "ResponsesAPIAgentServerInstanceConfig",
    "ResponsesAPIAgentServerTypeConfig",
    "ResponsesAPIModelServerInstanceConfig",
    "ResponsesAPIModelServerTypeConfig",
    "ServerInstanceConfig",
    "ServerInstanceConfigTypeAdapter",
    "ServerRef",
    "ServerTypeConfig",
    "UnsupportedAgentPairingError",
    "UnsupportedModelPairingError",
    "is_almost_server",
    "is_server_ref",
    "maybe_get_server_instance_config",
]
