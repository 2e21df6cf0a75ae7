"""Configuration blocks of servers: as a running server sees its own, and as YAML declares them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeAlias, cast

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from nemo_gym.records import keys
from nemo_gym.servers.datasets import BenchmarkDatasetConfig, DatasetConfig
from nemo_gym.servers.references import (
    AgentServerRef,
    EnvironmentServerRef,
    ModelServerRef,
    ResourcesServerRef,
    ServerRef,
)

DEFAULT_HOST = "127.0.0.1"


class Domain(StrEnum):
    """What a resources server's tasks are about."""

    MATH = "math"
    CODING = "coding"
    AGENT = "agent"
    KNOWLEDGE = "knowledge"
    INSTRUCTION_FOLLOWING = "instruction_following"
    LONG_CONTEXT = "long_context"
    SAFETY = "safety"
    GAMES = "games"
    TRANSLATION = "translation"
    E2E = "e2e"
    RLHF = "rlhf"
    OTHER = "other"


class BaseServerConfig(BaseModel):
    """Where a server listens."""

    host: str
    port: int
    num_workers: int | None = None


class BaseRunServerConfig(BaseServerConfig):
    """A server that is started from a file."""

    entrypoint: str
    domain: Domain | None = None


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """A running server's own configuration; `name` is its top-level key. Unknown keys are ignored."""

    name: str


class BaseRunServerTypeConfig(BaseRunServerConfig):
    """A block as written in YAML: the launcher fills host and port, further keys belong to the server."""

    model_config = ConfigDict(extra="allow")

    host: str | None = None  # type: ignore[assignment]
    port: int | None = None  # type: ignore[assignment]
    datasets: list[Annotated[DatasetConfig | BenchmarkDatasetConfig, Field(discriminator="type")]] | None = None


OneImplementation: TypeAlias = Annotated[dict[str, BaseRunServerTypeConfig], Field(min_length=1, max_length=1)]


class _ServerTypeConfig(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    SERVER_TYPE: ClassVar[str]


class ResponsesAPIModelServerTypeConfig(_ServerTypeConfig):
    """The block of a model server."""

    SERVER_TYPE: ClassVar[str] = "responses_api_models"
    responses_api_models: OneImplementation


class ResourcesServerTypeConfig(_ServerTypeConfig):
    """The block of a resources server, which must say its domain."""

    SERVER_TYPE: ClassVar[str] = "resources_servers"
    resources_servers: OneImplementation

    @model_validator(mode="after")
    def _needs_domain(self) -> ResourcesServerTypeConfig:
        for name, block in self.resources_servers.items():
            if block.domain is None:
                known = ", ".join(domain.value for domain in Domain)
                raise ValueError(f"resources server `{name}` needs a `domain`: one of {known}")
        return self


class ResponsesAPIAgentServerTypeConfig(_ServerTypeConfig):
    """The block of an agent server."""

    SERVER_TYPE: ClassVar[str] = "responses_api_agents"
    responses_api_agents: OneImplementation


class EnvironmentServerTypeConfig(_ServerTypeConfig):
    """The block of an environment server."""

    SERVER_TYPE: ClassVar[str] = "environment_servers"
    environment_servers: OneImplementation


class _ServerInstanceConfig(_ServerTypeConfig):
    name: str
    server_type_config_dict: DictConfig = Field(exclude=True)
    REF: ClassVar[type[ServerRef]]

    def get_server_ref(self) -> ServerRef:
        """Return what other blocks write to name this server."""
        return self.REF.model_validate({"type": self.SERVER_TYPE, "name": self.name})

    def get_inner_run_server_config(self) -> BaseRunServerTypeConfig:
        """Return the implementation's block, validated."""
        implementations: dict[str, BaseRunServerTypeConfig] = getattr(self, self.SERVER_TYPE)
        return next(iter(implementations.values()))

    def get_inner_run_server_config_dict(self) -> DictConfig:
        """Return the implementation's block as the configuration holds it."""
        return cast(DictConfig, next(iter(self.server_type_config_dict[self.SERVER_TYPE].values())))

    @property
    def datasets(self) -> list[DatasetConfig | BenchmarkDatasetConfig] | None:
        """The datasets that the block declares, or None."""
        return self.get_inner_run_server_config().datasets


class ResponsesAPIModelServerInstanceConfig(_ServerInstanceConfig, ResponsesAPIModelServerTypeConfig):
    """A named model server."""

    REF: ClassVar[type[ServerRef]] = ModelServerRef


class ResourcesServerInstanceConfig(_ServerInstanceConfig, ResourcesServerTypeConfig):
    """A named resources server."""

    REF: ClassVar[type[ServerRef]] = ResourcesServerRef


class ResponsesAPIAgentServerInstanceConfig(_ServerInstanceConfig, ResponsesAPIAgentServerTypeConfig):
    """A named agent server."""

    REF: ClassVar[type[ServerRef]] = AgentServerRef


class EnvironmentServerInstanceConfig(_ServerInstanceConfig, EnvironmentServerTypeConfig):
    """A named environment server."""

    REF: ClassVar[type[ServerRef]] = EnvironmentServerRef


ServerTypeConfig: TypeAlias = (
    ResponsesAPIModelServerTypeConfig
    | ResourcesServerTypeConfig
    | ResponsesAPIAgentServerTypeConfig
    | EnvironmentServerTypeConfig
)
ServerInstanceConfig: TypeAlias = (
    ResponsesAPIModelServerInstanceConfig
    | ResourcesServerInstanceConfig
    | ResponsesAPIAgentServerInstanceConfig
    | EnvironmentServerInstanceConfig
)
_INSTANCES: dict[str, type[_ServerInstanceConfig]] = {
    "responses_api_models": ResponsesAPIModelServerInstanceConfig,
    "resources_servers": ResourcesServerInstanceConfig,
    "responses_api_agents": ResponsesAPIAgentServerInstanceConfig,
    "environment_servers": EnvironmentServerInstanceConfig,
}
ServerInstanceConfigTypeAdapter: TypeAdapter[ServerInstanceConfig] = TypeAdapter(ServerInstanceConfig)


def maybe_get_server_instance_config(
    name: str, server_config_dict: Any
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """Return (config, None) for a server block, (None, error) for a broken one, (None, None) for anything else."""
    if not isinstance(server_config_dict, Mapping):
        return None, None
    kinds = [kind for kind in keys.SERVER_KINDS if kind in server_config_dict]
    if len(kinds) != 1:
        return None, None
    block = (
        server_config_dict if isinstance(server_config_dict, DictConfig) else OmegaConf.create(dict(server_config_dict))
    )
    plain = OmegaConf.to_container(block, resolve=True)
    assert isinstance(plain, dict)
    data = {str(key): value for key, value in plain.items()} | {"name": name, "server_type_config_dict": block}
    try:
        return cast(ServerInstanceConfig, _INSTANCES[kinds[0]].model_validate(data)), None
    except ValidationError as error:
        return None, error


def is_almost_server(server_config_dict: Any) -> bool:
    """Return whether a block names a server kind and an implementation with an entry point, valid or not."""
    if not isinstance(server_config_dict, Mapping):
        return False
    for kind in keys.SERVER_KINDS:
        implementations = server_config_dict.get(kind)
        if isinstance(implementations, Mapping) and any(
            isinstance(block, Mapping) and "entrypoint" in block for block in implementations.values()
        ):
            return True
    return False
