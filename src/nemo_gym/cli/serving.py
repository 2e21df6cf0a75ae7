"""Head server and servers together, for as long as a command needs them.

The head server runs in this process: what is left over when the command is killed is then at most the server processes,
and these end themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from nemo_gym.cli.head_client import STARTED_IN, HeadAddress
from nemo_gym.cli.state_folder import make_log_folder, state_folder
from nemo_gym.config import ResolvedConfig, assign_ports, check_capture_directory, use_global_config_dict
from nemo_gym.config.names import DEFAULT_HEAD_PORT, ENDPOINT_TIMEOUT, HEAD_SERVER, LOG_DIR, MODELS
from nemo_gym.engine.local import RunningServers, ServerInstance, start_servers
from nemo_gym.engine.local.launch import Event
from nemo_gym.errors import ConfigError, ServerStartError

Say = Callable[[str], None]

_SHARED_IMPORTS = ("nemo_gym.servers.agent", "nemo_gym.servers.model", "nemo_gym.servers.resources")
_OWN_LOG_FOLDERS_KEPT = 20
_UPSTREAM_TIMEOUT_S = 2.0


@dataclass(slots=True, kw_only=True)
class ServedRun:
    """What is running.

    `config`: with ports assigned. `stop_requested` is set when somebody asked the head server to end everything.
    `seconds`: how long it took until all were ready.
    """

    head_url: str
    config: ResolvedConfig
    log_dir: Path
    servers: RunningServers
    seconds: float
    stop_requested: asyncio.Event

    @property
    def instances(self) -> list[ServerInstance]:
        """The server processes, in order of the configuration; the head server is none of them."""
        return self.servers.instances

    async def wait_failed(self) -> ServerStartError:
        """Wait until a server ends without being asked to; return what to tell the person."""
        return await self.servers.wait_failed()

    def kill(self) -> None:
        """End all server processes at once."""
        self.servers.kill()


@contextlib.asynccontextmanager
async def serve(
    config: ResolvedConfig,
    *,
    log_dir: Path | None = None,
    any_head_port: bool = False,
    ready_timeout_s: float | None = None,
    on_event: Callable[[ServerInstance, Event], None] | None = None,
    say: Say = lambda _text: None,
) -> AsyncIterator[ServedRun]:
    """Start the head server and every server of `config`; end them all on leaving, however that happens.

    Entered when every server is ready. `any_head_port`: take a free port when the default one is taken and the
    configuration names none. `log_dir`: default is the configuration's `nemo_gym_log_dir`, else a folder of its own
    under the user's state folder. `say` gets sentences for the person. Raises `ConfigError` (a port is taken, the
    capture directory cannot be written) and `ServerStartError`.
    """
    began = time.monotonic()
    check_capture_directory(config.data)
    listener, config = _listen(config, any_head_port=any_head_port)
    with listener:
        config = assign_ports(config)
        use_global_config_dict(config.data)
        logs = make_log_folder((log_dir or _log_dir(config)).absolute())

        def started(instance: ServerInstance, event: Event) -> None:
            if event == "started":
                head.add(instance)
            if on_event is not None:
                on_event(instance, event)

        head = _Head(listener)
        on_way = asyncio.Event()
        starting = asyncio.create_task(
            start_servers(
                config,
                log_dir=logs,
                ready_timeout_s=ready_timeout_s,
                on_event=started,
                on_way=on_way.set,
                shared_imports=_SHARED_IMPORTS,
            )
        )
        servers: RunningServers | None = None
        stop_requested = asyncio.Event()
        try:
            # Let the processes be created before this one spends its time importing what the head server needs.
            await _either(starting, on_way)
            head.start(config, stop_requested)
            servers = await starting
            await _wait_for_upstreams(config, say)
            head.ready()
            yield ServedRun(
                head_url=HeadAddress.of(config.data).url,
                config=config,
                log_dir=logs,
                servers=servers,
                seconds=time.monotonic() - began,
                stop_requested=stop_requested,
            )
        finally:
            if servers is None:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            else:
                await servers.stop()
            await head.stop()


async def _either(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    """Wait until the task has ended or the event is set."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


class _Head:
    """The head server's app, served by uvicorn in this event loop."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._entries: list[dict[str, Any]] = []
        self._state: Any = None
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    def add(self, instance: ServerInstance) -> None:
        self._entries.append({**instance.as_dict(), STARTED_IN: str(Path.cwd())})

    def ready(self) -> None:
        self._state.ready = True

    def start(self, config: ResolvedConfig, stop_requested: asyncio.Event) -> None:
        # Imported when the server processes are on their way: they need the processor at the same time.
        import uvicorn

        from nemo_gym.servers.access import TokenMiddleware, check_binding, server_token
        from nemo_gym.servers.head import HeadState, build_head_app

        host = str(self._listener.getsockname()[0])
        check_binding(host)
        self._state = HeadState(
            config_yaml=yaml.safe_dump(config.data, sort_keys=False, allow_unicode=True),
            instances=self._entries,
            ready=False,
            on_shutdown=stop_requested.set,
        )
        app: Any = build_head_app(self._state)
        if (token := server_token()) is not None:
            app = TokenMiddleware(app, token=token)

        class Server(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # the command itself decides what a signal means

        options = uvicorn.Config(app, log_level="error", lifespan="off", access_log=False, ws="none")
        self._server = Server(options)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def stop(self) -> None:
        if self._task is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.gather(self._task, return_exceptions=True)


def _listen(config: ResolvedConfig, *, any_head_port: bool) -> tuple[socket.socket, ResolvedConfig]:
    """Open the head server's address first: it is the one that another run may hold."""
    address = HeadAddress.of(config.data)
    try:
        return _open(address.host, address.port), config
    except OSError as error:
        if any_head_port and config.provenance.get(f"{HEAD_SERVER}.port") == "default":
            listener = _open(address.host, 0)
            head = {**config.data[HEAD_SERVER], "port": listener.getsockname()[1]}
            return listener, dataclasses.replace(config, data={**config.data, HEAD_SERVER: head})
        raise ConfigError(
            f"port {address.port} on `{address.host}`, which the head server is to use, is taken "
            f"({error.strerror}). If another `gym env start` runs there, `{stop_command(address)}` ends it; or give "
            f"another port with `++{HEAD_SERVER}.port=N`."
        ) from error


def check_head_port(config: ResolvedConfig) -> None:
    """Raise `ConfigError` when the head server could not listen at this moment."""
    _listen(config, any_head_port=False)[0].close()


def stop_command(address: HeadAddress) -> str:
    """Return the command that ends what runs behind a head server."""
    setting = "" if address.port == DEFAULT_HEAD_PORT else f" +{HEAD_SERVER}.port={address.port}"
    return f"gym env stop{setting}"


def _open(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _log_dir(config: ResolvedConfig) -> Path:
    """Return the folder for this run's logs. Our own folders are kept in number; a folder of the user's is theirs."""
    configured = config.data.get(LOG_DIR)
    if configured:
        return Path(str(configured)).expanduser().absolute()
    base = state_folder("logs")
    _drop_oldest(base)
    return base / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{os.getpid()}"


def _drop_oldest(base: Path) -> None:
    folders = sorted(path for path in base.glob("*-*-*") if path.is_dir())
    for folder in folders[: -_OWN_LOG_FOLDERS_KEPT + 1]:
        with contextlib.suppress(OSError):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()


async def _wait_for_upstreams(config: ResolvedConfig, say: Say) -> None:
    """Look whether the endpoints behind the model servers can be reached; say which cannot.

    Waits for them only when the configuration says how long (`model_endpoint_readiness_timeout_seconds`).
    """
    wait_s = float(config.data.get(ENDPOINT_TIMEOUT) or 0)
    urls = {url: block.name for block in config.server_blocks() if block.kind == MODELS for url in _upstreams(block)}
    if not urls or any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")):
        return
    deadline = time.monotonic() + wait_s
    said = False
    while True:
        problems = await asyncio.gather(*(_unreachable(url) for url in urls))
        missing = {url: problem for url, problem in zip(urls, problems, strict=True) if problem}
        if not missing:
            return
        waiting = time.monotonic() < deadline and any(problem != "unknown host" for problem in missing.values())
        if not said or not waiting:
            for url, problem in missing.items():
                tail = f"; waiting up to {wait_s:g} s" if waiting else "; calls to it will fail"
                say(f"Warning: `{url}`, behind model server `{urls[url]}`, cannot be reached ({problem}){tail}.")
        said = True
        if not waiting:
            return
        await asyncio.sleep(0.5)


def _upstreams(block: Any) -> list[str]:
    found: list[str] = []
    for key, value in block.settings.items():
        if str(key).endswith("base_url"):
            found += [
                text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str) and text
            ]
    return found


async def _unreachable(url: str) -> str | None:
    """Return why nothing listens behind a URL, or None when something does."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "not a URL"
    if not host:
        return "not a URL"
    try:
        async with asyncio.timeout(_UPSTREAM_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except socket.gaierror:
        return "unknown host"
    except TimeoutError:
        return f"no answer in {_UPSTREAM_TIMEOUT_S:g} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else "no connection"
    return None
