"""`CaptureMiddleware`: plain ASGI around a model server.

It takes the rollout prefix off, copies the bytes of each model call as they pass, and hands the finished exchange to
the writer. The bytes are never changed. Only the bytes that end an answer wait until the record is durable, so that
who has seen the end of a call can read its record at once; they wait no longer than `HOLD_DEADLINE_S`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from nemo_gym.capture import process
from nemo_gym.capture.correlation import (
    PREFIX,
    ROLLOUT_SCOPE_KEY,
    ASGIApp,
    Message,
    Receive,
    RolloutPath,
    Scope,
    Send,
    current_rollout,
    rollout_context,
    split_rollout_path,
    stripped_scope,
)
from nemo_gym.capture.exchange import KEPT_REQUEST_HEADERS, Exchange
from nemo_gym.capture.execution import FACTS_SCOPE_KEY, current_facts
from nemo_gym.capture.hold import TerminalHold
from nemo_gym.capture.observer import CallObserver
from nemo_gym.capture.settings import ModelCallCaptureConfig, make_capture_store
from nemo_gym.capture.shared_timer import SharedTimer
from nemo_gym.capture.store import CaptureStore
from nemo_gym.capture.writer import CaptureWriter
from nemo_gym.dialects.errors import error_body
from nemo_gym.dialects.names import MODEL_CALL_PATHS, Dialect
from nemo_gym.records import keys
from nemo_gym.records.codec import encode

_LOG = logging.getLogger(__name__)
HOLD_DEADLINE_S = 2.0
ROOM_POLL_S = 0.01
MODEL_CALL_ID_SCOPE_KEY = "ng_model_call_id"
"""Where the scope that came in keeps the id of a prefixed model call, for who answers in the application's place."""

_ID_HEADER = keys.MODEL_CALL_ID_HEADER.encode()
_SESSION_HEADER = keys.SESSION_ID_HEADER.encode()
_READ_HEADERS = KEPT_REQUEST_HEADERS | {_SESSION_HEADER, b"content-encoding"}


class CaptureMiddleware:
    """ASGI middleware of a model server (C3, C6, C7). With `store` None it strips the prefix and records nothing.

    `model_ref` is `{"type": "responses_api_models", "name": ...}` or None. Non-HTTP scopes pass untouched.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        store: CaptureStore | None = None,
        model_ref: Mapping[str, str] | None = None,
        writer: CaptureWriter | None = None,
        hold_deadline_s: float = HOLD_DEADLINE_S,
    ) -> None:
        self.app = app
        self.writer = writer if writer is not None or store is None else CaptureWriter(store)
        self._model_ref = encode(None if model_ref is None else dict(model_ref))
        self._hold_deadline_s = hold_deadline_s
        self._timer: SharedTimer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        kind = scope["type"]
        if kind == "http" and scope["path"].startswith(PREFIX) and ROLLOUT_SCOPE_KEY not in scope:
            route = split_rollout_path(scope["path"], scope.get("raw_path"))
            if route is not None:
                await self._prefixed(scope, receive, send, route)
                return
        elif kind == "lifespan" and self.writer is not None:
            await self._lifespan(scope, receive, send, self.writer)
            return
        await self.app(scope, receive, send)

    def _prefixed(self, scope: Scope, receive: Receive, send: Send, route: RolloutPath) -> Awaitable[None]:
        path, problem = route.path, route.problem
        dialect = MODEL_CALL_PATHS.get(path) if scope["method"] == "POST" else None
        if dialect is None:
            known = route if problem is None else None
            return self._inside(known, stripped_scope(scope, route), receive, send)
        # On the scope that came in: who answers outside of this middleware can name the call too.
        model_call_id = scope[MODEL_CALL_ID_SCOPE_KEY] = process.new_call_id()
        if problem is not None:
            return self._refuse(send, dialect, model_call_id, problem)
        inner = stripped_scope(scope, route, path)
        if self.writer is None:
            return self._inside(route, inner, receive, _with_call_id(send, model_call_id))
        exchange = Exchange(model_call_id, route.rollout_id, dialect, self._model_ref)
        exchange.invocation_id = route.invocation_id
        return self._captured(self.writer, exchange, inner, receive, send)

    async def _inside(self, route: RolloutPath | None, scope: Scope, receive: Receive, send: Send) -> None:
        with rollout_context(*((None, None) if route is None else (route.rollout_id, route.invocation_id))):
            await self.app(scope, receive, send)

    async def _captured(
        self, writer: CaptureWriter, exchange: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if writer.crowded:
            await _wait_for_room(writer, self._hold_deadline_s)
        _keep_headers(exchange, scope["headers"])
        scope[FACTS_SCOPE_KEY] = exchange.facts
        facts = current_facts.set(exchange.facts)
        rollout = current_rollout.set((exchange.rollout_id, exchange.invocation_id))
        hold = TerminalHold(send, self._timer_of_this_loop())
        observer = CallObserver(exchange, receive, send, hold, _ID_HEADER)
        writer.counters.calls += 1
        exchange.started_at = time.time()
        slot = writer.ledger.begin(exchange.rollout_id, exchange.model_call_id, exchange.started_at)
        started = observer.started = time.perf_counter()
        try:
            await self.app(scope, observer.receive, observer.send)
        except BaseException as error:
            exchange.app_error = _root_cause(error)
            if isinstance(exchange.app_error, Exception):
                hold.expect()  # who answers in the application's place does so when the record is durable
            raise
        finally:
            exchange.completed_at = time.time()
            exchange.latency = time.perf_counter() - started
            current_rollout.reset(rollout)
            current_facts.reset(facts)
            hold.recording = True
            observer.end()
            # Synchronous on purpose: a cancelled request cannot lose its record here.
            if not writer.submit(exchange, slot, hold.waiter()):
                hold.settle(False)
            if exchange.app_error is not None and not isinstance(exchange.app_error, Exception):
                hold.abandon()
            else:
                if observer.is_opening:
                    await observer.open()
                if hold.pending and not await hold.release():
                    writer.counters.late += 1
                    writer.mark_incomplete(
                        exchange.rollout_id, exchange.model_call_id, "not durable before the hold deadline"
                    )

    def _timer_of_this_loop(self) -> SharedTimer:
        loop, timer = asyncio.get_running_loop(), self._timer
        if timer is None or timer.loop is not loop:
            timer = self._timer = SharedTimer(loop, self._hold_deadline_s)
        return timer

    async def _refuse(self, send: Send, dialect: Dialect, model_call_id: str, problem: str) -> None:
        """Answer 400 in the dialect's own shape: a call that cannot be recorded must not look like one that was."""
        if self.writer is not None:
            self.writer.counters.refused += 1
        _LOG.warning("capture: refused a model call: %s", problem)
        body = encode(error_body(dialect, status=400, message=problem, code="invalid_rollout_id"))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (_ID_HEADER, model_call_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send, writer: CaptureWriter) -> None:
        """Name the calls that died with an earlier process at start-up; make everything durable at the end."""

        async def flushing_send(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await asyncio.to_thread(_recover, writer.store)
            elif message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await asyncio.to_thread(writer.close)
            await send(message)

        await self.app(scope, receive, flushing_send)


def install_model_call_capture(
    app: Any,
    config: ModelCallCaptureConfig | Mapping[str, Any],
    *,
    model_server_name: str | None = None,
    **_token_capture: object,
) -> CaptureWriter | None:
    """Add capture to a FastAPI or Starlette application; returns its writer, None when capture is off.

    Other keyword arguments belong to token capture and are ignored. Raises ConfigError on unusable settings.
    """
    store = make_capture_store(config)
    writer = None if store is None else CaptureWriter(store)
    model_ref = None if model_server_name is None else {"type": "responses_api_models", "name": model_server_name}
    app.add_middleware(CaptureMiddleware, store=store, model_ref=model_ref, writer=writer)
    app.state.model_call_capture = writer
    if writer is not None:
        _LOG.info("capture: model calls of `%s` go to `%s`", model_server_name, writer.store.root)
    return writer


def capture_health(app: Any) -> dict[str, Any]:
    """Return the capture counters of an application, of a `CaptureMiddleware` or of a writer, for a health route.

    `{enabled, directory, calls, written, queued, failed, late, refused, void, last_error}`; only `enabled` when off.
    """
    writer = app if isinstance(app, CaptureWriter) else getattr(app, "writer", None)
    if writer is None:
        writer = getattr(getattr(app, "state", None), "model_call_capture", None)
    if not isinstance(writer, CaptureWriter):
        return {"enabled": False}
    return {"enabled": True, "directory": str(writer.store.root), **writer.counters.as_dict()}


def model_call_id_of(scope: Scope) -> str | None:
    """Return the id given to the prefixed model call of an incoming scope, or None when it is none."""
    value = scope.get(MODEL_CALL_ID_SCOPE_KEY)
    return value if isinstance(value, str) else None


def _with_call_id(send: Send, model_call_id: str) -> Send:
    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = _headed(message, model_call_id)
        await send(message)

    return send_with_id


def _headed(message: Message, model_call_id: str) -> Message:
    """Return a response start with the call id in place of any that the application forwarded."""
    headers = [item for item in message.get("headers", ()) if item[0].lower() != _ID_HEADER]
    return {**message, "headers": [*headers, (_ID_HEADER, model_call_id.encode())]}


def _keep_headers(exchange: Exchange, headers: Any) -> None:
    sessions: list[bytes] = []
    for name, value in headers:
        if name not in _READ_HEADERS:
            continue
        if name == _SESSION_HEADER:
            sessions.append(value.strip())
        elif name == b"content-encoding":
            exchange.request_encoding = value.decode("latin-1")
        else:
            exchange.kept_headers[name.decode()] = value.decode("latin-1")
    if sessions:
        declared = set(sessions) - {b""}
        if len(declared) == 1:  # several different values declare nothing
            exchange.client_session_id = declared.pop().decode("utf-8", "replace")


def _root_cause(error: BaseException) -> BaseException:
    """The one exception inside nested groups: task groups of the application wrap what was raised in them."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _wait_for_room(writer: CaptureWriter, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while writer.crowded and time.monotonic() < deadline:
        await asyncio.sleep(ROOM_POLL_S)


def _recover(store: CaptureStore) -> None:
    try:
        found = store.recover()
    except (OSError, ValueError) as error:
        _LOG.warning("capture: what earlier processes left in `%s` cannot be read: %s", store.root, error)
        return
    if found:
        _LOG.warning("capture: %d model calls died with an earlier process; their rollouts are marked", found)
