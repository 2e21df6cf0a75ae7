"""Head server and servers for as long as a command needs them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from nemo_gym.cli import detaching
from nemo_gym.cli.head_client import HeadAddress
from nemo_gym.cli.serving import serve
from nemo_gym.config import ResolvedConfig, load_config, use_global_config_dict
from nemo_gym.config.ports import find_open_port
from nemo_gym.errors import ConfigError

COMPONENTS = Path(__file__).parent.parent / "engine" / "components"
BASE = {"plain": {"resources_servers": {"plain": {"entrypoint": "app.py", "domain": "other"}}}}

Make = Callable[..., ResolvedConfig]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def call(*overrides: str, initial: object = BASE) -> ResolvedConfig:
        assert isinstance(initial, dict)
        return load_config(initial=initial, overrides=overrides, search_dirs=[COMPONENTS], env_file=None)

    yield call
    use_global_config_dict(None)


async def test_the_head_server_tells_what_runs_until_the_end(make: Make, runs: Callable[[int], bool]) -> None:
    async with serve(make(f"++head_server.port={find_open_port()}")) as run:
        address = HeadAddress.of(run.config.data)
        assert run.head_url == address.url
        assert (await address.ask("/readyz")).status == 200
        assert [entry["pid"] for entry in await address.instances()] == [run.instances[0].pid]
        config = yaml.safe_load(json.loads((await address.ask("/global_config_dict_yaml")).body))
        assert config == run.config.data
        assert config["plain"]["resources_servers"]["plain"]["port"] == run.instances[0].port
        await address.ask("/shutdown", method="POST")
        await run.stop_requested.wait()
    assert not runs(run.instances[0].pid)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", address.port))


@pytest.mark.parametrize("configured", [True, False])
async def test_a_folder_for_logs_that_cannot_be_made_is_named_with_another_way(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "state"))
    own = [f"+nemo_gym_log_dir={tmp_path / 'file' / 'logs'}"] if configured else []
    with pytest.raises(ConfigError, match=r"file/.*: not a directory.*\+nemo_gym_log_dir=DIR.*XDG_STATE_HOME"):
        async with serve(make(f"++head_server.port={find_open_port()}", *own)):
            pass
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"):
        detaching._output_file()


async def test_a_taken_default_head_port_gives_way_only_when_the_caller_allows_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr("nemo_gym.config.names.DEFAULT_HEAD_PORT", port)
        with pytest.raises(ConfigError, match=f"port {port} .* is taken"):
            async with serve(make()):
                pass
        with pytest.raises(ConfigError, match=f"port {port} .* is taken"):
            async with serve(make(f"+head_server.port={port}"), any_head_port=True):
                pass
        async with serve(make(), any_head_port=True) as run:
            assert run.config.data["head_server"]["port"] != port
            assert (await HeadAddress.of(run.config.data).ask("/readyz")).status == 200


async def test_an_upstream_that_cannot_be_reached_is_said(make: Make) -> None:
    said: list[str] = []
    url = f"http://127.0.0.1:{find_open_port()}/v1"
    model = {"policy_model": {"responses_api_models": {"plain_model": {"entrypoint": "app.py", "base_url": [url]}}}}
    async with serve(make(f"++head_server.port={find_open_port()}", initial=model), say=said.append):
        pass
    [warning] = said
    assert warning.startswith(
        f"Warning: `{url}`, behind model server `policy_model`, cannot be reached (connection refused)"
    )


async def test_only_the_newest_folders_of_logs_are_kept(make: Make, tmp_path: Path) -> None:
    base = tmp_path / "nemo-gym" / "logs"
    for number in range(25):
        (base / f"20200101-0000{number:02}-1").mkdir(parents=True)
        (base / f"20200101-0000{number:02}-1" / "plain.log").write_text("old")
    async with serve(make(f"++head_server.port={find_open_port()}")) as run:
        assert run.log_dir.parent == base
    assert len(list(base.iterdir())) == 20
    assert run.log_dir in base.iterdir()
