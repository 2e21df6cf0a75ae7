"""What a server process sets up around its app: open files, output lines, worker markers, liveness routes, Ray."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nemo_gym.errors import MissingExtraError

logger = logging.getLogger(__name__)

WORKER_ENV = "IS_NEMO_GYM_FASTAPI_WORKER"
ENTRYPOINT_ENV = "IS_NEMO_GYM_FASTAPI_ENTRYPOINT"
NUM_WORKERS_ENV = "NEMO_GYM_FASTAPI_NUM_WORKERS"
LIVENESS_PATHS = ("/", "/livez", "/readyz", "/healthz", "/health")
OPEN_FILES = 65_535

_OK = b'{"status":"ok"}'


def is_nemo_gym_fastapi_worker() -> bool:
    """Return whether this process is one of several workers of a server."""
    return os.environ.get(WORKER_ENV) == "True"


def is_nemo_gym_fastapi_entrypoint(file: str) -> bool:
    """Return whether `file` must make its module-level `app`: only in a worker, and only for its entry file."""
    if not is_nemo_gym_fastapi_worker():
        return False
    entry = os.environ.get(ENTRYPOINT_ENV, "")
    if Path(file).name != Path(entry).name:
        return False
    # A worker first runs the entry file once more under this name; the app of that run would serve nobody.
    return sys._getframe(1).f_globals.get("__name__") != "__mp_main__"


@contextlib.contextmanager
def worker_markers(entrypoint: str, num_workers: int) -> Iterator[None]:
    """Mark the processes that are started inside as workers of `entrypoint`."""
    marks = {WORKER_ENV: "True", ENTRYPOINT_ENV: entrypoint, NUM_WORKERS_ENV: str(num_workers)}
    before = {name: os.environ.get(name) for name in marks}
    os.environ.update(marks)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def add_liveness_routes(app: FastAPI) -> None:
    """Answer `{"status":"ok"}` on the liveness paths that the app does not serve itself."""

    async def alive(_request: Request) -> Response:
        return Response(_OK, media_type="application/json")

    app.router.routes.extend(Route(path, alive, methods=["GET"], include_in_schema=False) for path in LIVENESS_PATHS)


def raise_open_files_limit(wanted: int = OPEN_FILES) -> None:
    """Let this process hold many connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (ValueError, OSError) as error:
        logger.warning("cannot raise the limit of open files from %d to %d: %s", soft, target, error)


class _PrefixedLines:
    """A text stream that puts a name in front of each line."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._at_line_start = True

    def write(self, text: str) -> int:
        if text:
            lead = self._prefix if self._at_line_start else ""
            self._at_line_start = text.endswith("\n")
            body = text[:-1] if self._at_line_start else text
            self._stream.write(lead + body.replace("\n", "\n" + self._prefix) + ("\n" if self._at_line_start else ""))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prefix_output(name: str) -> None:
    """Put `(<name>) ` in front of each line that this process prints, once."""
    if not isinstance(sys.stdout, _PrefixedLines):
        sys.stdout = _PrefixedLines(sys.stdout, f"({name}) ")
        sys.stderr = _PrefixedLines(sys.stderr, f"({name}) ")


def log_to_stderr() -> None:
    """Show warnings and notices of this package on stderr, unless the program set up logging itself."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def start_ray(config: Mapping[str, Any], *, enabled: bool | None) -> None:
    """Connect to the run's Ray cluster, or start one, for a server that says it needs Ray.

    A server that says nothing gets Ray only when its own code has imported it.
    """
    if enabled is False or (enabled is None and "ray" not in sys.modules):
        return
    try:
        ray: ModuleType = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("this server needs Ray: `python -m pip install ray`") from error
    if ray.is_initialized():
        return
    address = config.get("ray_head_node_address")
    ray.init(address=address, ignore_reinit_error=True)
    logger.info("ray: %s", f"joined the cluster at `{address}`" if address else "started a cluster on this machine")
