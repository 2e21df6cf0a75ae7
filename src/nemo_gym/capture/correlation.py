"""Which rollout a request belongs to: the URL prefix, and the rollout that is current while a request is handled.

`/ng-rollout/<rollout>[/inv/<invocation>][/training-token-capture]/<rest>` (C6). The prefix counts only at the very
start of the path, and is taken off once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from nemo_gym.records import identity, keys

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

PREFIX = f"/{keys.ROLLOUT_PATH_PREFIX}/"
_INVOCATION = f"/{keys.INVOCATION_PATH_SEGMENT}/"
_TOKEN_CAPTURE = f"/{keys.TOKEN_CAPTURE_PATH_SEGMENT}/"
_RAW_PREFIX = PREFIX.encode()

ROLLOUT_SCOPE_KEY = "ng_rollout"
"""Where a stripped scope keeps its `RolloutPath`, so that a second middleware does not strip again."""

current_rollout: ContextVar[tuple[str | None, str | None]] = ContextVar("ng_rollout", default=(None, None))
"""The ids of the rollout and of the invocation that the request being handled belongs to."""


@dataclass(frozen=True)
class RolloutPath:
    """A prefixed path taken apart. The ids are decoded and unchecked; `rest` starts with `/` and is decoded."""

    rollout_id: str
    invocation_id: str | None
    token_capture: bool
    rest: str
    raw_rest: bytes

    @cached_property
    def path(self) -> str:
        """`rest` without a slash at its end."""
        return self.rest[:-1] if self.rest.endswith("/") else self.rest

    @cached_property
    def problem(self) -> str | None:
        """Why the ids cannot be used, or None."""
        if self.invocation_id is not None and not 0 < len(self.invocation_id) <= identity.MAX_ROLLOUT_ID_LENGTH:
            return f"an invocation id has 1 to {identity.MAX_ROLLOUT_ID_LENGTH} characters"
        return identity.rollout_id_problem(self.rollout_id)


@lru_cache(4096)
def split_rollout_path(path: str, raw_path: bytes | None = None) -> RolloutPath | None:
    """Return the parts of a prefixed path, or None when the path has no prefix.

    `raw_path` is the path as sent: with it an escaped slash stays inside its segment instead of opening a new one.
    A rollout makes many calls under one path, so recent answers are kept.
    """
    if not path.startswith(PREFIX):
        return None
    escaped = raw_path is not None and b"%" in raw_path and raw_path.startswith(_RAW_PREFIX)
    whole = raw_path.decode("latin-1") if escaped and raw_path is not None else path
    rollout_id, slash, rest = whole[len(PREFIX) :].partition("/")
    if not slash:
        return None
    rest = "/" + rest
    invocation_id: str | None = None
    token_capture = False
    while True:
        if invocation_id is None and rest.startswith(_INVOCATION):
            invocation, slash, after = rest[len(_INVOCATION) :].partition("/")
            if not slash:
                break
            invocation_id, rest = invocation, "/" + after
        elif not token_capture and rest.startswith(_TOKEN_CAPTURE):
            token_capture, rest = True, rest[len(_TOKEN_CAPTURE) - 1 :]
        else:
            break
    if escaped:
        return RolloutPath(
            unquote(rollout_id),
            None if invocation_id is None else unquote(invocation_id),
            token_capture,
            unquote(rest),
            rest.encode("latin-1"),
        )
    return RolloutPath(rollout_id, invocation_id, token_capture, rest, rest.encode())


def stripped_scope(scope: Scope, route: RolloutPath, path: str | None = None) -> Scope:
    """Return a copy of `scope` whose path is what follows the prefix, or `path` when given."""
    inner = dict(scope)
    inner["path"] = route.rest if path is None else path
    inner["raw_path"] = route.raw_rest if path is None else path.encode()
    inner[ROLLOUT_SCOPE_KEY] = route
    return inner


def current_rollout_id() -> str | None:
    """Return the rollout of the request being handled, captured or not; None outside of one."""
    return current_rollout.get()[0]


def current_invocation_id() -> str | None:
    """Return the invocation that the URL of the request being handled named, or None."""
    return current_rollout.get()[1]


@contextmanager
def rollout_context(rollout_id: str | None, invocation_id: str | None = None) -> Iterator[None]:
    """Make a rollout current for the duration of the block."""
    token = current_rollout.set((rollout_id, invocation_id))
    try:
        yield
    finally:
        current_rollout.reset(token)


class RolloutContextMiddleware:
    """ASGI middleware that takes the rollout prefix off and makes the rollout current; it records nothing.

    For agent and resources servers. A path whose id is unusable is stripped too, without a current rollout.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        if scope["type"] == "http" and ROLLOUT_SCOPE_KEY not in scope:
            route = split_rollout_path(scope["path"], scope.get("raw_path"))
            if route is not None:
                usable = route.problem is None
                with rollout_context(route.rollout_id if usable else None, route.invocation_id if usable else None):
                    await self.app(stripped_scope(scope, route), receive, send)
                return
        await self.app(scope, receive, send)


def rollout_path_prefix(
    rollout_id: str | None, *, token_capture: bool = False, invocation_id: str | None = None
) -> str:
    """Return `/ng-rollout/<id>` with its optional segments, or "" without an id; raises ValueError on a bad id."""
    if rollout_id is None:
        return ""
    prefix = PREFIX + identity.check_rollout_id(rollout_id)
    if invocation_id is not None:
        prefix += _INVOCATION + quote(invocation_id, safe="")
    return prefix + _TOKEN_CAPTURE[:-1] if token_capture else prefix


def apply_rollout_prefix(
    base_url: str, rollout_id: str | None, *, token_capture: bool = False, invocation_id: str | None = None
) -> str:
    """Return a server's root URL with the prefix; the caller appends `/v1`. Trailing slashes are trimmed."""
    prefix = rollout_path_prefix(rollout_id, token_capture=token_capture, invocation_id=invocation_id)
    return base_url.rstrip("/") + prefix if prefix else base_url


def maybe_rollout_id_from_run_body(body: object) -> str | None:
    """Return the capture key that a run request names, attempt suffix included, or None when it names none.

    `body` is a mapping or a model; an explicit `_ng_rollout_id` wins, and an unusable one raises ValueError (C11).
    """
    return identity.rollout_id_of(body if isinstance(body, Mapping) else _identity_of_model(body))


def url_path_for_request(url_path: str, request: Any) -> str:
    """Return `url_path` under the prefix of the inbound `request`; unchanged when it had none, or is None (C8).

    The rollout is the route's `rollout_id` path parameter, or what a middleware took off the path.
    """
    scope = getattr(request, "scope", None) or {}
    route = scope.get(ROLLOUT_SCOPE_KEY)
    if isinstance(route, RolloutPath):
        if route.problem is not None:
            return url_path
        prefix = rollout_path_prefix(
            route.rollout_id, token_capture=route.token_capture, invocation_id=route.invocation_id
        )
        return prefix + url_path
    parameters = getattr(request, "path_params", None) or {}
    rollout_id = parameters.get("rollout_id")
    if rollout_id is None:
        return url_path
    inbound = split_rollout_path(str(scope.get("path", "")), scope.get("raw_path"))
    token_capture = inbound is not None and inbound.token_capture
    invocation_id = parameters.get("invocation_id") or (None if inbound is None else inbound.invocation_id)
    return rollout_path_prefix(rollout_id, token_capture=token_capture, invocation_id=invocation_id) + url_path


def _identity_of_model(body: object) -> dict[str, Any]:
    """The identity keys of a pydantic-like object: extra fields, and fields declared under an alias."""
    found = dict(getattr(body, "model_extra", None) or {})
    for name, field in getattr(type(body), "model_fields", {}).items():
        for key in (name, getattr(field, "alias", None)):
            if key is not None and key.startswith("_ng_"):
                found[key] = getattr(body, name)
    return {key: value for key, value in found.items() if value is not None}
