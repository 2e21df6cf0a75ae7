"""Starts every server of a configuration, one process each, all at once; waits until each serves; ends them all."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nemo_gym.config import INSTALL_ROOT, ResolvedConfig, ServerBlock
from nemo_gym.config.global_dict import hand_down
from nemo_gym.config.names import SPINUP_TIMEOUT
from nemo_gym.config.ports import port_is_free
from nemo_gym.engine.local.adoption import ForkServer, can_adopt
from nemo_gym.engine.local.leftovers import DEATH_PIPE_ENV, LAUNCH_ID_ENV, end_marked_processes
from nemo_gym.engine.local.probe import ask
from nemo_gym.engine.local.process import ServerInstance, ServerProcess, log_tail
from nemo_gym.errors import ConfigError, ServerStartError
from nemo_gym.records.keys import CONFIG_DICT_ENV, CONFIG_PATH_ENV, EXTRA_ROOTS_ENV

READY_PATH = "/readyz"
STOP_GRACE_S = 3.0

_FIRST_POLL_S = 0.02
_SLOWEST_POLL_S = 0.1
_PROBE_TIMEOUT_S = 2.0
_STARTING = "while starting"

Event = Literal["started", "ready"]
EventCallback = Callable[[ServerInstance, Event], None]


@dataclass(slots=True)
class RunningServers:
    """Servers that were started together. `instances` is in order of the configuration."""

    launch_id: str
    _death_pipe: tuple[int, int]
    _processes: list[ServerProcess] = field(default_factory=list)
    _stopping: bool = False

    @property
    def instances(self) -> list[ServerInstance]:
        """What was started."""
        return [process.instance for process in self._processes]

    async def wait_failed(self) -> ServerStartError:
        """Wait until a server ends without being asked to, and return what to tell the person."""
        watches = [asyncio.create_task(process.process.wait()) for process in self._processes]
        try:
            if watches:
                await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.Event().wait()
        finally:
            for watch in watches:
                watch.cancel()
        dead = next(process for process in self._processes if process.exit_code is not None)
        return _died(dead, "while running")

    async def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End every server and whatever these started: SIGTERM, SIGKILL after `grace_s`. May be called twice.

        Returns when all are reaped. Cancelling the caller does not interrupt it.
        """
        if self._stopping:
            return
        self._stopping = True
        await _uninterrupted(self._stop(grace_s))

    def kill(self) -> None:
        """End everything at once, without a grace period."""
        for process in self._processes:
            process.signal_group(signal.SIGKILL)

    async def _stop(self, grace_s: float) -> None:
        await asyncio.gather(*(process.stop(grace_s) for process in self._processes))
        # What a server started may have left its group, or ignored the signal.
        await asyncio.to_thread(end_marked_processes, self.launch_id, grace_s=min(grace_s, 0.5))
        self.kill()
        for end in self._death_pipe:
            os.close(end)


async def start_servers(
    config: ResolvedConfig,
    *,
    log_dir: Path,
    ready_timeout_s: float | None = None,
    on_event: EventCallback | None = None,
    on_way: Callable[[], None] = lambda: None,
    environ: Mapping[str, str] | None = None,
    shared_imports: Sequence[str] = (),
) -> RunningServers:
    """Start the servers of `config`, whose ports are assigned, and wait until each answers.

    `log_dir` gets one `<instance name>.log` each. `ready_timeout_s`: None takes the configuration's, 0 waits forever.
    `shared_imports` names modules that every server needs: where several servers start, these are imported once, by a
    process of which the servers are copies. `on_way` is called once processes exist that need time of their own.
    Raises `ConfigError` when a port is taken and `ServerStartError`, with the last 20 log lines, when a server dies or
    is not ready in time; then nothing is left running.
    """
    blocks = [block for block in config.server_blocks() if block.starts_process]
    _check_ports(blocks)
    log_dir.mkdir(parents=True, exist_ok=True)
    timeout_s = float(config.data.get(SPINUP_TIMEOUT) or 0) if ready_timeout_s is None else ready_timeout_s
    running = RunningServers(secrets.token_hex(8), os.pipe())
    ready = False
    try:
        environment = _environment(config, running, log_dir, os.environ if environ is None else environ)
        logs = {block.name: log_dir / f"{_file_name(block.name)}.log" for block in blocks}
        shared = shared_imports if can_adopt() and _several_import(blocks, shared_imports) else ()
        async for process in _created(running, blocks, logs, environment, shared_imports=shared, on_way=on_way):
            running._processes.append(process)
            if on_event is not None:
                on_event(process.instance, "started")
        await _wait_ready(running._processes, timeout_s, on_event)
        ready = True
    finally:
        if not ready:
            await running.stop(grace_s=0.5)
    return running


async def _created(
    running: RunningServers,
    blocks: Sequence[ServerBlock],
    logs: Mapping[str, Path],
    environment: Mapping[str, str],
    *,
    shared_imports: Sequence[str],
    on_way: Callable[[], None],
) -> AsyncIterator[ServerProcess]:
    """Create the processes: copies of one another when they share imports, else one by one."""
    death_pipe = running._death_pipe[0]
    if shared_imports:
        for log_file in logs.values():
            log_file.open("wb").close()  # what cannot be written is an error here; a copy has nowhere to say it
        forkserver = ForkServer(shared_imports, directory=INSTALL_ROOT, environment=environment, inherited=death_pipe)
        on_way()
        processes = await forkserver.fork([_copy_of(block, logs[block.name]) for block in blocks])
        if processes is not None:
            for block, process in zip(blocks, processes, strict=True):
                yield ServerProcess.of(block, process, log_file=logs[block.name])
            return
    for block in blocks:
        variables = {**environment, CONFIG_PATH_ENV: block.name}
        yield await ServerProcess.start(block, log_file=logs[block.name], environment=variables, death_pipe=death_pipe)
    on_way()


def _several_import(blocks: Sequence[ServerBlock], modules: Sequence[str]) -> bool:
    """Return whether several entry files name the package of `modules`: for fewer, sharing would cost, not save."""
    packages = {module.partition(".")[0].encode() for module in modules}
    users = 0
    for block in blocks:
        assert block.directory is not None
        try:
            text = (block.directory / block.entrypoint).read_bytes()
        except OSError:
            continue
        users += any(package in text for package in packages)
    return users > 1


def _copy_of(block: ServerBlock, log_file: Path) -> dict[str, str]:
    """What a fork server needs to know of a server."""
    return {
        "directory": str(block.directory),
        "entrypoint": block.entrypoint,
        "log_file": str(log_file.absolute()),
        "name_variable": CONFIG_PATH_ENV,
        "name": block.name,
    }


def _environment(
    config: ResolvedConfig, running: RunningServers, log_dir: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    roots = [str(root) for root in config.roots]
    # A server runs in its own folder: files that are relative to this folder are found through the extra roots.
    extra = [str(root) for root in config.roots if root != INSTALL_ROOT]
    inherited = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {
        **environ,
        CONFIG_DICT_ENV: hand_down(config.data, log_dir / "config.json"),
        EXTRA_ROOTS_ENV: os.pathsep.join(extra),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([*roots, *inherited])),
        "PYTHONUNBUFFERED": "1",
        LAUNCH_ID_ENV: running.launch_id,
        DEATH_PIPE_ENV: str(running._death_pipe[0]),
    }


def _check_ports(blocks: Sequence[ServerBlock]) -> None:
    for block in blocks:
        assert block.port is not None, "ports are assigned before servers are started"
        if not port_is_free(block.host, block.port):
            key = f"{block.name}.{block.kind}.{block.implementation}.port"
            raise ConfigError(
                f"port {block.port} on `{block.host}`, which {block.label} is to use, is taken or cannot be opened. "
                f"Give another with `++{key}=N`, or leave it out to get a free one."
            )


async def _wait_ready(processes: Sequence[ServerProcess], timeout_s: float, on_event: EventCallback | None) -> None:
    tasks = [asyncio.create_task(_wait_one(process, on_event)) for process in processes]
    try:
        async with asyncio.timeout(timeout_s or None):
            await asyncio.gather(*tasks)
    except TimeoutError as error:
        late = [process for process, task in zip(processes, tasks, strict=True) if not _succeeded(task)]
        names = ", ".join(f"`{process.instance.name}`" for process in late)
        raise ServerStartError(
            f"not ready after {timeout_s:g} s: {names}. `++{SPINUP_TIMEOUT}=SECONDS` waits longer, 0 for ever."
            + _log_lines(late[0].instance)
        ) from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _wait_one(process: ServerProcess, on_event: EventCallback | None) -> None:
    """Poll one server until it answers; raise as soon as its process ends."""
    instance = process.instance
    delay = _FIRST_POLL_S
    exited = asyncio.create_task(process.process.wait())
    try:
        while not exited.done():
            answer = await ask(instance.host, instance.port, READY_PATH, timeout_s=_PROBE_TIMEOUT_S)
            # A server without that route is ready when it answers at all.
            if answer is not None and answer.status < 500 and not exited.done():
                if on_event is not None:
                    on_event(instance, "ready")
                return
            await asyncio.wait([exited], timeout=delay)
            delay = min(delay * 1.2, _SLOWEST_POLL_S)
        raise _died(process, _STARTING)
    finally:
        exited.cancel()


def _died(process: ServerProcess, when: str) -> ServerStartError:
    instance = process.instance
    tail = log_tail(instance.log_file)
    message = f"server `{instance.name}` ({instance.kind}/{instance.implementation}) {process.describe_exit()} {when}."
    text = "\n".join(tail)
    if re.search(r"address already in use", text, re.IGNORECASE):
        message += f" Port {instance.port} is taken."
    if (module := re.search(r"ModuleNotFoundError: No module named '([^']+)'", text)) and (
        needs := _requirements(instance.directory)
    ):
        message += f" Module `{module[1]}` is not installed; {needs}"
    if process.exit_code == 0 and when == _STARTING:
        message += (
            f" `{instance.directory / instance.entrypoint}` must end with "
            f'`if __name__ == "__main__": {_server_class(instance)}.run_webserver()`.'
        )
    return ServerStartError(message + _log_lines(instance))


def _server_class(instance: ServerInstance) -> str:
    """The name of the last class in the entry file that looks like a server, for a message."""
    try:
        text = (instance.directory / instance.entrypoint).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    found = re.findall(r"^class (\w+)\((?:Simple|Base)\w*(?:Server|Agent|Model)\b", text, re.MULTILINE)
    return found[-1] if found else "YourServer"


def _requirements(directory: Path) -> str:
    file = directory / "requirements.txt"
    return f"`pip install -r {file}` installs what this server needs." if file.is_file() else ""


def _log_lines(instance: ServerInstance) -> str:
    tail = log_tail(instance.log_file)
    if not tail:
        return f" Its log `{instance.log_file}` is empty."
    return f" The end of its log `{instance.log_file}`:\n" + "\n".join(f"  {line}" for line in tail)


def _file_name(instance_name: str) -> str:
    return re.sub(r"[^\w.-]", "_", instance_name)


async def _uninterrupted(work: Awaitable[None]) -> None:
    """Wait for `work` to its end, even when the waiting task is cancelled meanwhile; then be cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    await task
    if cancelled is not None:
        raise cancelled
