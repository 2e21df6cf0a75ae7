"""What a resources server with typed sessions owes whoever opens and closes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp

from nemo_gym.base_resources_server import ResourcesSeedSessionRequest

UNKNOWN_SESSION = "session-that-was-never-seeded"


def check_resources_session_contract(
    app: ASGIApp, seed: ResourcesSeedSessionRequest | Mapping[str, Any], *, keeps_state: bool
) -> None:
    """Raise AssertionError where an app breaks a rule of sessions; `seed` is a body of `/seed_session`.

    Seeding an id twice gives the same session. Closing is idempotent, also for an id that was never seeded. With
    `keeps_state` an id that was closed is not seeded again.
    """
    from starlette.testclient import TestClient  # its HTTP client is not needed elsewhere

    request = ResourcesSeedSessionRequest.model_validate(seed)
    body = request.model_dump(mode="json")
    session_id = request.resources_session_id
    client = TestClient(app, raise_server_exceptions=False)

    for turn in ("first", "second"):
        # The second caller has no cookie of the first one: the id alone names the session.
        answer = TestClient(app, raise_server_exceptions=False).post("/seed_session", json=body)
        _expect(answer.status_code == 200, f"the {turn} seed of `{session_id}` answered {answer.status_code}", answer)
        given = answer.json().get("resources_session_id")
        _expect(given == session_id, f"the {turn} seed of `{session_id}` answered the session `{given}`", answer)
    for closed_id in (session_id, session_id, UNKNOWN_SESSION):
        closing = {"resources_session_id": closed_id, "episode_id": body["episode_id"]}
        answer = client.post("/close_session", json=closing)
        _expect(answer.status_code == 200, f"closing `{closed_id}` answered {answer.status_code}", answer)
        given = answer.json().get("resources_session_id")
        _expect(given == closed_id, f"closing `{closed_id}` answered the session `{given}`", answer)
    if keeps_state:
        answer = client.post("/seed_session", json=body)
        _expect(
            answer.status_code >= 400,
            f"`{session_id}` was closed, and seeding it again answered {answer.status_code} as if its state were there",
            answer,
        )


def _expect(holds: bool, what: str, answer: Any) -> None:
    if not holds:
        raise AssertionError(f"{what}: {answer.text[:500]}")
