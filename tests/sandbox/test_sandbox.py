"""The names that environments use: specs, the registry, configuration, the life of a sandbox."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym import sandbox
from nemo_gym.config import use_global_config_dict
from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import AsyncSandbox, SandboxCreateError, SandboxResources, SandboxSpec, rewrite_image
from nemo_gym.sandbox.access import DirectSandboxConnection, SandboxAccess
from nemo_gym.sandbox.config import resolve_provider_config, resolve_provider_metadata
from nemo_gym.sandbox.providers.local import LocalProvider
from nemo_gym.sandbox.registry import NOT_SHIPPED
from nemo_gym.sandbox.utils import cpu_cap_env
from nemo_gym.servers import session_types


def test_every_public_name_is_there() -> None:
    for name in sandbox.__all__:
        assert getattr(sandbox, name) is not None
    assert importlib.import_module("nemo_gym.sandbox.providers.base").ConnectableProvider
    assert sandbox.ExecResult is sandbox.SandboxExecResult
    assert session_types.SandboxAccess is SandboxAccess
    with pytest.raises(SandboxCreateError, match="several sandboxes"):
        sandbox.AsyncSandboxCompose()


def test_a_spec_accepts_resources_as_a_mapping_and_refuses_unknown_ones() -> None:
    assert SandboxSpec(resources={"cpu": 2}).resources == SandboxResources(cpu=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`ram`.*`cpu`, `memory_mib`, `disk_gib`, `gpu`, `gpu_type`"):
        SandboxResources.from_mapping({"ram": 1})
    with pytest.raises(TypeError, match="resources"):
        SandboxSpec(resources=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ports", "error"),
    [([0], ValueError), ([65536], ValueError), ([80, 80], ValueError), (["80"], TypeError), ([True], TypeError),
     ("80", TypeError), (80, TypeError)],
)  # fmt: skip
def test_ports_that_are_none_are_refused(ports: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        SandboxSpec(ports=ports)


def test_providers_are_known_by_name() -> None:
    assert sandbox.list_providers() == ["local"]
    assert sandbox.get_provider_class("local") is LocalProvider
    for name in NOT_SHIPPED:
        with pytest.raises(ConfigError, match=rf'register_provider\("{name}"'):
            sandbox.get_provider_class(name)
    with pytest.raises(ValueError, match="Did you mean `local`"):
        sandbox.create_provider({"locl": {}})
    with pytest.raises(ValueError, match="base_dri"):
        sandbox.create_provider({"local": {"base_dri": "x"}})
    with pytest.raises(ValueError, match="one name"):
        sandbox.create_provider({})


def test_a_provider_of_the_users_own_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_gym.sandbox.registry._registered", {"local": LocalProvider})

    class Mine(LocalProvider):
        pass

    sandbox.register_provider("docker", Mine)
    sandbox.register_provider("docker", Mine)
    assert isinstance(sandbox.create_provider({"docker": None}), Mine)
    assert sandbox.list_providers() == ["docker", "local"]
    with pytest.raises(ValueError, match="registered already"):
        sandbox.register_provider("docker", LocalProvider)


def test_a_reference_names_a_block_or_is_one() -> None:
    blocks = {"box": {"local": {"base_dir": "/x"}, "default_metadata": {"team": "a"}}, "other": {"a": 1, "b": 2}}
    assert resolve_provider_config("box", blocks) == {"local": {"base_dir": "/x"}}
    assert resolve_provider_config("box", OmegaConf.create(blocks)) == {"local": {"base_dir": "/x"}}  # type: ignore[arg-type]
    assert resolve_provider_metadata("box", blocks) == {"team": "a"}
    assert resolve_provider_config({"local": None}) == {"local": {}}
    assert resolve_provider_metadata({"local": {}}) == {}
    with pytest.raises(ValueError, match=r"`bxo`.*Candidates: `box`\."):
        resolve_provider_config("bxo", blocks)
    with pytest.raises(ValueError, match=r"exactly one provider.*`a`, `b`"):
        resolve_provider_config("other", blocks)
    for wrong in (3, None, ["local"]):
        with pytest.raises(TypeError):
            resolve_provider_config(wrong)  # type: ignore[arg-type]


def test_a_name_is_looked_up_in_the_configuration_of_this_process() -> None:
    use_global_config_dict({"box": {"local": {}}})
    try:
        assert resolve_provider_config("box") == {"local": {}}
    finally:
        use_global_config_dict(None)


def test_images_and_thread_counts() -> None:
    rewrites = [{"from": "docker.io/", "to": "mirror/"}, {"from": "docker", "to": "never"}]
    assert rewrite_image("docker.io/a:1", rewrites) == "mirror/a:1"
    assert rewrite_image("ghcr.io/a", rewrites) == "ghcr.io/a"
    assert rewrite_image(None, rewrites) is None
    assert cpu_cap_env(None) == {}
    assert set(cpu_cap_env(2.9).values()) == {"2"}
    assert len(cpu_cap_env(0.1)) == 19
    assert cpu_cap_env(0.1)["OMP_NUM_THREADS"] == "1"


def test_access_travels_as_plain_data_without_further_fields() -> None:
    connection = DirectSandboxConnection(provider_config_ref="box", descriptor={"sandbox_id": "x"})
    access = SandboxAccess(connection=connection, workdir="/work")
    assert SandboxAccess.model_validate_json(access.model_dump_json()) == access
    with pytest.raises(ValueError, match="extra"):
        SandboxAccess.model_validate({**access.model_dump(), "more": 1})


async def test_a_sandbox_is_started_once_and_used_in_between(tmp_path: Path) -> None:
    made = AsyncSandbox({"local": {"base_dir": str(tmp_path)}})
    with pytest.raises(RuntimeError, match="not started"):
        await made.exec("true")
    with pytest.raises(ValueError, match="SandboxSpec"):
        await made.start()
    await made.start(SandboxSpec(files={"a/b.txt": b"hello"}))
    assert (await made.exec("cat a/b.txt")).stdout == "hello"
    with pytest.raises(RuntimeError, match="already"):
        await made.start()
    await made.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await made.exec("true")


async def test_a_start_that_fails_leaves_no_sandbox(tmp_path: Path) -> None:
    provider = {"local": {"base_dir": str(tmp_path)}}
    with pytest.raises(FileNotFoundError):
        await AsyncSandbox(provider).start(SandboxSpec(files={"a": str(tmp_path / "missing")}))

    async def setup(made: AsyncSandbox) -> None:
        assert (await made.exec("true")).return_code == 0
        raise LookupError("no")

    with pytest.raises(LookupError):
        await AsyncSandbox(provider).start_with_setup(SandboxSpec(), setup)
    assert list(tmp_path.iterdir()) == []


async def test_a_provider_that_is_not_ready_in_time_is_a_create_error() -> None:
    class Slow(LocalProvider):
        closed = False

        async def create(self, spec: SandboxSpec) -> Any:
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            self.closed = True

    provider = Slow()
    with pytest.raises(SandboxCreateError, match=r"not ready after 0\.01 s"):
        await AsyncSandbox(provider, SandboxSpec(ready_timeout_s=0.01)).start()
    assert provider.closed
