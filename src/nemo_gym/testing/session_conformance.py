"""Whether a resources server keeps the rules of sessions that are named by an id, asked of its real app.

The rules hold for retries: what opens or closes a session may be sent twice, and a request that comes late must not
open again what was closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.types import ASGIApp

if TYPE_CHECKING:
    from starlette.testclient import TestClient

SEED_PATH, CLOSE_PATH = "/seed_session", "/close_session"
_ID = "resources_session_id"
_EXCERPT = 300


def check_resources_session_contract(app: ASGIApp, seed: BaseModel | Mapping[str, Any], *, keeps_state: bool) -> None:
    """Seed, seed again, close twice, close an unknown session, and seed late; AssertionError says which rule is broken.

    `app` is what `setup_webserver` returns. `seed` is the body of a typed seed request. With `keeps_state` a seed after
    the close must be refused, with any status from 400; a server without state of its own may answer it.
    """
    body = seed.model_dump(mode="json") if isinstance(seed, BaseModel) else dict(seed)
    closing = {key: body[key] for key in (_ID, "episode_id")}
    unknown = {**closing, _ID: f"{body[_ID]}-never-seeded"}
    # Here, since only tests need a client for an app in the same process.
    from starlette.testclient import TestClient

    with TestClient(app, raise_server_exceptions=False) as client:
        first = _session_of(client, SEED_PATH, body, "a seed")
        again = _session_of(client, SEED_PATH, body, "the same seed again")
        if first != again:
            raise AssertionError(f"the same seed twice must name the same session; it answered {first}, then {again}")
        _session_of(client, CLOSE_PATH, closing, "a close")
        _session_of(client, CLOSE_PATH, closing, "a second close")
        _session_of(client, CLOSE_PATH, unknown, "a close of a session that was never seeded")
        late = client.post(SEED_PATH, json=body)
        if keeps_state and late.status_code < 400:
            raise AssertionError(
                f"a seed that comes after the close of its session must be refused, or it opens a session that nobody "
                f"closes; it was answered {late.status_code}"
            )
        _session_of(client, CLOSE_PATH, closing, "a close after the late seed")


def _session_of(client: TestClient, path: str, body: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the answer to a request that must succeed for the session it names."""
    answer = client.post(path, json=body)
    if answer.status_code != 200:
        said = answer.text[:_EXCERPT]
        raise AssertionError(f"{what} must succeed; POST {path} was answered {answer.status_code}: {said}")
    told = answer.json()
    if not isinstance(told, dict) or told.get(_ID) != body[_ID]:
        raise AssertionError(f"{what} must answer with its `{_ID}`, `{body[_ID]}`; POST {path} answered {told!r:.300}")
    return told


__all__ = ["check_resources_session_contract"]
