"""Model servers as they are served: a real HTTP server in a thread, and the captures it writes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import uvicorn
from omegaconf import OmegaConf

from nemo_gym.base_responses_api_model import CaptureStore, ModelCallRecord, read_model_call_records
from nemo_gym.server_utils import ServerClient


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an ASGI app on a free port; yields its URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server ended while it started"
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


def model_server(
    server_class: type, *, captures: Path | None = None, name: str = "policy_model", **settings: Any
) -> Any:
    """Make a model server from its class and settings; with `captures` it records there."""
    client = MagicMock(spec=ServerClient)
    run = {"observability_enabled": True, "model_call_capture_dir": str(captures)} if captures is not None else {}
    client.global_config_dict = OmegaConf.create(run)
    config_class = server_class.model_fields["config"].annotation
    config = config_class(host="127.0.0.1", port=1, entrypoint="app.py", name="policy_model", **settings)
    return server_class(config=config, server_client=client)


def records(captures: Path, rollout_id: str) -> list[ModelCallRecord]:
    """Return the recorded calls of a rollout."""
    return read_model_call_records(CaptureStore(captures), rollout_id)


def last_line(captures: Path, rollout_id: str) -> dict[str, Any]:
    """Return the last raw line of a rollout."""
    return CaptureStore(captures).read(rollout_id)[-1]
