"""`gym env start --detach`: the same command again as a process of its own, watched until it is ready."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nemo_gym.cli.head_client import HeadAddress
from nemo_gym.cli.output import note
from nemo_gym.cli.serving import check_head_port, stop_command
from nemo_gym.cli.state_folder import make_log_folder, state_folder
from nemo_gym.config import ResolvedConfig
from nemo_gym.config.names import SPINUP_TIMEOUT
from nemo_gym.engine.local import log_tail
from nemo_gym.errors import HeadServerUnreachableError, RemoteError, ServerStartError

_POLL_S = 0.05


async def start_detached(config: ResolvedConfig, *, as_json: bool, show: Callable[..., None]) -> int:
    """Start `gym env start` with the same arguments in the background; return 0 when all its servers are ready.

    Raises `ServerStartError` with the end of its output when it ends before that.
    """
    # Another run's head server would look like this one's.
    check_head_port(config)
    address = HeadAddress.of(config.data)
    output = _output_file()
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    with output.open("wb") as log:
        # Not a process of the event loop: some Pythons kill those when their loop ends.
        process = subprocess.Popen(
            [sys.executable, "-m", "nemo_gym.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        await _wait_ready(process, address, output, float(config.data.get(SPINUP_TIMEOUT) or 0))
    except BaseException:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait)
        raise
    show(await address.instances(), head=address, head_pid=process.pid, as_json=as_json)
    note(f"Ready; process {process.pid}, output in {output}. `{stop_command(address)}` ends it.")
    return 0


async def _wait_ready(process: subprocess.Popen[bytes], address: HeadAddress, output: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s + 30 if timeout_s else None
    while process.poll() is None:
        try:
            await address.ask("/readyz")
        except (HeadServerUnreachableError, RemoteError):
            pass
        else:
            return
        if deadline is not None and time.monotonic() > deadline:
            raise ServerStartError(f"not ready after {timeout_s:g} s; its output is in `{output}`.")
        await asyncio.sleep(_POLL_S)
    text = "\n".join(log_tail(output, 40))
    raise ServerStartError(f"`gym env start` ended with code {process.returncode}:\n{text}")


def _output_file() -> Path:
    base = make_log_folder(state_folder("detached"))
    return base / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
