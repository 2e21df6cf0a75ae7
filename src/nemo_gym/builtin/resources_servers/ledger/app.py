"""A ledger with typed tools and per-rollout state: the reward is read off the accounts, not off what the model says.

Each rollout gets its own accounts from the row's `initial_balances` when its session is seeded; `list_accounts`,
`get_balance` and `transfer` work on them; verification compares them with `expected_balances`.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.server_utils import SESSION_ID_KEY

Balances = dict[str, int]


class LedgerConfig(BaseResourcesServerConfig):
    """Settings of the ledger."""

    # The state that earned a reward is gone after the rollout, so a saved rollout cannot be scored again.
    REVERIFY_MODE = ReverifyMode.UNSUPPORTED

    session_idle_seconds: float = Field(default=3600.0, gt=0, description="A session unused for this long is dropped.")
    max_transfer: int = Field(default=1_000_000, gt=0, description="Largest amount one transfer may move, in cents.")


class LedgerSeedRequest(BaseSeedSessionRequest):
    """The accounts a rollout begins with, in cents."""

    initial_balances: Balances


class LedgerVerifyRequest(BaseVerifyRequest):
    """The accounts a solved task ends with, in cents."""

    model_config = ConfigDict(extra="allow")

    expected_balances: Balances


class LedgerVerifyResponse(BaseVerifyResponse):
    """The reward with the accounts it was read from."""

    model_config = ConfigDict(extra="allow")

    final_balances: Balances | None = Field(default=None, description="None when the session held no accounts.")
    accounts_correct: int = Field(default=0, description="How many expected accounts have the expected balance.")
    transfers_made: int = Field(default=0, description="How many transfers succeeded.")


class AccountRequest(BaseModel):
    """One account by its name."""

    account: str


class TransferRequest(BaseModel):
    """Move `amount` cents from `source` to `target`."""

    source: str
    target: str
    amount: Annotated[int, Field(gt=0)]


class _Session:
    __slots__ = ("balances", "transfers", "used_at")

    def __init__(self, balances: Balances) -> None:
        self.balances = dict(balances)
        self.transfers = 0
        self.used_at = time.monotonic()


class LedgerServer(SimpleResourcesServer):
    """Keeps one set of accounts per session."""

    config: LedgerConfig
    _sessions: dict[str, _Session] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        """The usual routes, and one per tool."""
        app = super().setup_webserver()
        app.post("/list_accounts")(self.list_accounts)
        app.post("/get_balance")(self.get_balance)
        app.post("/transfer")(self.transfer)
        return app

    # The annotations of an override choose how its body is parsed, so its signature is its own.
    async def seed_session(  # type: ignore[override]
        self, request: Request, body: LedgerSeedRequest
    ) -> BaseSeedSessionResponse:
        """Open the accounts of one rollout; an open session is never set back, only seeded again the same way."""
        self._drop_idle_sessions()
        session_id = request.session[SESSION_ID_KEY]
        live = self._sessions.get(session_id)
        if live is not None and (live.transfers or live.balances != body.initial_balances):
            raise HTTPException(409, "this session has accounts already: they cannot be set back or replaced")
        self._sessions[session_id] = live or _Session(body.initial_balances)
        return BaseSeedSessionResponse()

    async def list_accounts(self, request: Request) -> dict[str, list[str]]:
        """Tool: the names of all accounts."""
        return {"accounts": sorted(self._session(request).balances)}

    async def get_balance(self, request: Request, body: AccountRequest) -> dict[str, Any]:
        """Tool: the balance of one account, in cents."""
        balances = self._session(request).balances
        _need_account(balances, body.account)
        return {"account": body.account, "balance": balances[body.account]}

    async def transfer(self, request: Request, body: TransferRequest) -> dict[str, Any]:
        """Tool: move money; an account never goes below zero."""
        session = self._session(request)
        balances = session.balances
        _need_account(balances, body.source)
        _need_account(balances, body.target)
        if body.amount > self.config.max_transfer:
            raise HTTPException(400, f"one transfer moves at most {self.config.max_transfer} cents")
        if balances[body.source] < body.amount:
            raise HTTPException(
                400, f"account `{body.source}` holds {balances[body.source]} cents, less than {body.amount}"
            )
        balances[body.source] -= body.amount
        balances[body.target] += body.amount
        session.transfers += 1
        return {body.source: balances[body.source], body.target: balances[body.target]}

    async def verify(self, request: Request, body: LedgerVerifyRequest) -> LedgerVerifyResponse:
        """Reward 1.0 when every account ends as expected, else 0.0; a lost session is masked: it measures nothing."""
        session = self._sessions.pop(request.session.get(SESSION_ID_KEY, ""), None)
        if session is None:
            return LedgerVerifyResponse(
                **body.model_dump(),
                reward=0.0,
                mask_sample=True,
                failure_kind="session_lost",
                failure_reason="the ledger has no accounts for this session: it was never seeded, or sat idle too long",
            )
        return LedgerVerifyResponse(
            **body.model_dump(),
            reward=1.0 if session.balances == body.expected_balances else 0.0,
            final_balances=session.balances,
            accounts_correct=sum(session.balances.get(name) == cents for name, cents in body.expected_balances.items()),
            transfers_made=session.transfers,
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Pass@k over the repeats of each task."""
        return compute_pass_majority_metrics(tasks)[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The mean reward, and pass@k at the largest k."""
        key = {"mean/reward": agent_metrics["mean/reward"]} if "mean/reward" in agent_metrics else {}
        return (
            key
            | highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"])
            | highest_k_metrics(agent_metrics, "pass@1[avg-of-{k}]", score_names=["accuracy"])
        )

    def _session(self, request: Request) -> _Session:
        session = self._sessions.get(request.session[SESSION_ID_KEY])
        if session is None:
            raise HTTPException(409, "this session has no accounts: call /seed_session first")
        session.used_at = time.monotonic()
        return session

    def _drop_idle_sessions(self) -> None:
        # A rollout that died never verifies, so its accounts would stay for ever.
        limit = time.monotonic() - self.config.session_idle_seconds
        for session_id in [key for key, session in self._sessions.items() if session.used_at < limit]:
            del self._sessions[session_id]


def _need_account(balances: Balances, account: str) -> None:
    if account not in balances:
        raise HTTPException(404, f"there is no account `{account}`; the accounts are {sorted(balances)}")


if __name__ == "__main__":
    LedgerServer.run_webserver()
