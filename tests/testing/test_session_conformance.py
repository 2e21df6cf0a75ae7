"""The rules of typed sessions, held against servers that keep them and servers that break one each."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import HTTPException
from pydantic import PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import ServerClient
from nemo_gym.testing.session_conformance import check_resources_session_contract

SEED = {
    "resources_session_id": "s-1",
    "episode_id": {"rollout_id": "r-1"},
    "task_id": {"taskset": "t", "task_id": "1"},
    "task_data": {},
}


class Stateless(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=0.0)


class Keeping(Stateless):
    _open: set[str] = PrivateAttr(default_factory=set)
    _closed: set[str] = PrivateAttr(default_factory=set)

    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:
        if body.resources_session_id in self._closed:
            raise HTTPException(409, "closed")
        self._open.add(body.resources_session_id)
        return ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        self._open.discard(body.resources_session_id)
        self._closed.add(body.resources_session_id)
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)


class SeedsOnce(Keeping):
    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:
        if body.resources_session_id in self._open:
            raise HTTPException(409, "open already")
        return await super().seed_session(body)


class MakesItsOwnId(Keeping):
    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:
        return ResourcesSeedSessionResponse(resources_session_id=f"mine-{len(self._open)}")


class ClosesOnce(Keeping):
    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        self._open.remove(body.resources_session_id)
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)


def check(server: type[SimpleResourcesServer], **how: Any) -> None:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="typed")
    app = server(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()
    check_resources_session_contract(app, **{"seed": SEED, "keeps_state": True, **how})


def test_servers_that_keep_the_rules_pass() -> None:
    check(Stateless, keeps_state=False)
    check(Keeping)
    check(Keeping, seed=ResourcesSeedSessionRequest.model_validate(SEED))


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (SeedsOnce, "the second seed of `s-1` answered 409"),
        (MakesItsOwnId, "the session `mine-0`"),
        (ClosesOnce, "closing `s-1` answered 500"),
        (Stateless, "was closed"),
    ],
)
def test_each_broken_rule_is_told(server: type[SimpleResourcesServer], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check(server)
