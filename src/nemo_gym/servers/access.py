"""Who may call a server: everyone on the loopback interface, elsewhere only who knows the run's token."""

from __future__ import annotations

import hmac
import ipaddress
import os

from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.records.keys import SERVER_TOKEN_ENV, SERVER_TOKEN_HEADER

OPEN_PATHS = frozenset({"/", "/livez", "/readyz", "/healthz", "/health"})


_REFUSAL = "the token of this run is missing or wrong"


def server_token() -> str | None:
    """Return the run's token, or None when none is set."""
    return os.environ.get(SERVER_TOKEN_ENV) or None


def server_token_headers() -> dict[str, str]:
    """Return the header that servers of one run show each other; {} without a token."""
    token = server_token()
    return {SERVER_TOKEN_HEADER: token} if token else {}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str) -> None:
    """Raise ConfigError when a server would listen beyond this machine without a token."""
    if not is_loopback(host) and server_token() is None:
        raise ConfigError(
            f"refusing to listen on `{host}` without a token: anyone who reaches it could spend the model key. Set "
            f"`+server_token=...` (or `{SERVER_TOKEN_ENV}`) for every command of the run, or use host `127.0.0.1`."
        )


class TokenMiddleware:
    """Answers 401 to requests that do not show the token, WebSockets too; SDKs show it as their API key.

    The liveness routes stay open. The token is compared in constant time and never forwarded.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self.app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._is_shown(scope):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": _REFUSAL})
            return
        body = _refusal_body(scope)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _is_shown(self, scope: Scope) -> bool:
        shown = False
        for name, value in scope["headers"]:
            if name in (b"x-ng-server-token", b"x-api-key"):
                shown |= hmac.compare_digest(value, self._token)
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                shown |= hmac.compare_digest(value[7:], self._token)
        return shown


def _refusal_body(scope: Scope) -> bytes:
    """Return the refusal in the shape that the path's clients read; OpenAI's where the path says nothing."""
    # Imported when somebody is refused: the head server needs none of it.
    from nemo_gym.capture.correlation import split_rollout_path
    from nemo_gym.dialects.errors import error_body
    from nemo_gym.records import codec

    route = split_rollout_path(scope["path"], scope.get("raw_path"))
    path = scope["path"] if route is None else route.rest
    is_messages = path.startswith("/v1/messages")
    return codec.encode(error_body("messages" if is_messages else "chat", status=401, message=_REFUSAL))
