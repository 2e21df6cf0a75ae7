"""The signed cookie that ties the calls of one rollout to one session of a server."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from base64 import b64decode, b64encode
from typing import Any, Final

from itsdangerous import BadSignature, TimestampSigner
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_ID_KEY: Final = "session_id"
SIGNING_KEY_ENV: Final = "NEMO_GYM_SESSION_SIGNING_KEY"
"""A random secret of one launch. The launcher sets it for all servers; else each server makes its own."""

_MAX_AGE_S = 14 * 24 * 60 * 60


def launch_signing_key() -> str:
    """Return this launch's secret; one that is made here is left in the environment for worker processes."""
    return os.environ.setdefault(SIGNING_KEY_ENV, secrets.token_hex(32))


def server_signing_key(name: str) -> str:
    """Return the secret of one server, so that one server's cookie means nothing to another."""
    return hmac.new(launch_signing_key().encode(), name.encode(), hashlib.sha256).hexdigest()


def _new_id() -> str:
    """Return a random UUID (version 4) as text, for a third of what making the object costs."""
    random = os.urandom(16)
    text = random.hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[random[8] & 3]}{text[17:20]}-{text[20:]}"


class Session(dict[str, Any]):
    """What `request.session` is: a plain dictionary that knows whether a handler looked at it."""

    accessed = False

    def mark_accessed(self) -> None:
        """Remember that the session matters to this request."""
        self.accessed = True


class SessionMiddleware:
    """Gives each request the session that its cookie names, or a new one with a new `session_id`.

    The cookie is sent again with every response, so that it does not age during a rollout. With `only_used`, servers
    whose handlers rarely look at the session (model servers) send it only to who brought one, or when a handler looked.
    """

    def __init__(self, app: ASGIApp, *, cookie: str, key: str, only_used: bool = False) -> None:
        self.app = app
        self._cookie = cookie
        self._needle = cookie.encode()
        self._signer = TimestampSigner(key)
        self._only_used = only_used

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its session, and send the cookie with the answer."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        session = self._load(scope)
        brought = bool(session)
        if SESSION_ID_KEY not in session:
            session[SESSION_ID_KEY] = _new_id()
        scope["session"] = session

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                now: dict[str, Any] = scope["session"]
                if brought or not self._only_used or getattr(now, "accessed", True):
                    message["headers"] = [*message.get("headers", ()), (b"set-cookie", self._sign(now))]
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _load(self, scope: Scope) -> Session:
        for name, value in scope["headers"]:
            if name == b"cookie" and self._needle in value:
                return Session(self._unsign(value.decode("latin-1")))
        return Session()

    def _unsign(self, header: str) -> dict[str, Any]:
        signed = cookie_parser(header).get(self._cookie, "")
        try:
            content = json.loads(b64decode(self._signer.unsign(signed, max_age=_MAX_AGE_S)))
        except (BadSignature, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _sign(self, session: dict[str, Any]) -> bytes:
        signed = self._signer.sign(b64encode(json.dumps(session).encode())).decode()
        return f"{self._cookie}={signed}; path=/; Max-Age={_MAX_AGE_S}; httponly; samesite=lax".encode()
