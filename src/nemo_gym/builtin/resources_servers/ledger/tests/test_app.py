"""The ledger over HTTP: sessions of their own, tools that refuse, and a verdict read off the accounts."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient

from nemo_gym.builtin.resources_servers.ledger.app import LedgerConfig, LedgerServer
from nemo_gym.builtin.resources_servers.ledger.make_dataset import make_rows
from nemo_gym.server_utils import ServerClient

START = {"checking": 500, "savings": 100}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


@pytest.fixture
def server() -> LedgerServer:
    config = LedgerConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="ledger", max_transfer=400)
    return LedgerServer(config=config, server_client=MagicMock(spec=ServerClient))


def client(server: LedgerServer, *, seeded: bool = True) -> TestClient:
    made = TestClient(server.setup_webserver())
    if seeded:
        assert made.post("/seed_session", json={"initial_balances": START}).status_code == 200
    return made


def verify(made: TestClient, expected: dict) -> dict:
    body = {"responses_create_params": {"input": "x"}, "response": RESPONSE, "expected_balances": expected, "extra": 1}
    answer = made.post("/verify", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def move(made: TestClient, amount: object, source: str = "checking", target: str = "savings") -> tuple[int, str]:
    answer = made.post("/transfer", json={"source": source, "target": target, "amount": amount})
    return answer.status_code, answer.text


def test_tools_work_on_the_accounts_and_the_verdict_is_read_off_them(server: LedgerServer) -> None:
    made = client(server)
    assert made.post("/list_accounts", json={}).json() == {"accounts": ["checking", "savings"]}
    assert move(made, 200)[0] == 200
    assert made.post("/get_balance", json={"account": "checking"}).json() == {"account": "checking", "balance": 300}
    verdict = verify(made, {"checking": 300, "savings": 300})
    assert (verdict["reward"], verdict["accounts_correct"], verdict["transfers_made"]) == (1.0, 2, 1)
    assert verdict["extra"] == 1


def test_two_sessions_have_accounts_of_their_own(server: LedgerServer) -> None:
    app = server.setup_webserver()
    one, two = TestClient(app), TestClient(app)
    for made in (one, two):
        made.post("/seed_session", json={"initial_balances": START})
    move(one, 200)
    assert verify(two, START)["reward"] == 1.0
    assert verify(one, START)["reward"] == 0.0


def test_a_live_session_is_seeded_again_only_with_the_state_it_has(server: LedgerServer) -> None:
    made = client(server)
    assert made.post("/seed_session", json={"initial_balances": START}).status_code == 200
    assert made.post("/seed_session", json={"initial_balances": {"checking": 9999}}).status_code == 409
    move(made, 200)
    for balances in (START, {"checking": 300, "savings": 300}):
        assert made.post("/seed_session", json={"initial_balances": balances}).status_code == 409
    assert verify(made, {"checking": 300, "savings": 300})["reward"] == 1.0
    assert made.post("/seed_session", json={"initial_balances": START}).status_code == 200


@pytest.mark.parametrize(
    ("amount", "source", "status", "says"),
    [
        (600, "checking", 400, "at most 400"),
        (200, "savings", 400, "holds 100 cents"),
        (10, "travel", 404, "no account `travel`"),
        (0, "checking", 422, "greater than 0"),
        (-5, "checking", 422, "greater than 0"),
        ("x", "checking", 422, "integer"),
    ],
)
def test_a_transfer_that_cannot_be_made_says_why_and_moves_nothing(
    server: LedgerServer, amount: object, source: str, status: int, says: str
) -> None:
    made = client(server)
    answered, text = move(made, amount, source, "checking" if source == "savings" else "savings")
    assert (answered, says in text) == (status, True), text
    assert verify(made, START)["reward"] == 1.0


def test_tools_before_the_session_is_seeded_are_refused(server: LedgerServer) -> None:
    answer = client(server, seeded=False).post("/list_accounts", json={})
    assert (answer.status_code, "/seed_session" in answer.text) == (409, True)


def test_a_lost_session_is_masked_since_its_reward_measures_nothing(server: LedgerServer) -> None:
    verdict = verify(client(server, seeded=False), START)
    assert (verdict["mask_sample"], verdict["failure_kind"], verdict["final_balances"]) == (True, "session_lost", None)


def test_sessions_that_sat_idle_are_dropped() -> None:
    config = LedgerConfig(host="h", port=1, entrypoint="app.py", name="ledger", session_idle_seconds=1e-9)
    server = LedgerServer(config=config, server_client=MagicMock(spec=ServerClient))
    first, second = client(server), client(server)
    assert second.post("/list_accounts", json={}).status_code == 200
    assert first.post("/list_accounts", json={}).status_code == 409


def test_rows_are_made_the_same_by_the_same_seed_and_can_be_solved() -> None:
    assert list(make_rows(size=3, seed=5)) == list(make_rows(size=3, seed=5))
    for row in make_rows(size=20):
        start, end = row["initial_balances"], row["expected_balances"]
        assert start != end
        assert sum(start.values()) == sum(end.values())
        assert min(end.values()) >= 0
