"""The rules of sessions by id, on servers that keep them and on servers that break one each."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

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
from nemo_gym.episode_types import EpisodeId, TaskId
from nemo_gym.server_utils import ServerClient
from nemo_gym.testing.session_conformance import check_resources_session_contract

SEED = ResourcesSeedSessionRequest(
    resources_session_id="s1",
    episode_id=EpisodeId(rollout_id="r1", attempt=2),
    task_id=TaskId(taskset="numbers", task_id="7"),
    task_data={"secret": 7},
)


class Stateless(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


class Stateful(Stateless):
    """Keeps the rules; each subclass breaks one."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.__dict__["open"], self.__dict__["closed"] = {}, set()

    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:
        name = body.resources_session_id
        if name in self.__dict__["closed"]:
            raise ValueError(f"session {name} was closed")
        self.__dict__["open"].setdefault(name, body.task_data)
        return ResourcesSeedSessionResponse(resources_session_id=name)

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        self.__dict__["closed"].add(body.resources_session_id)
        self.__dict__["open"].pop(body.resources_session_id, None)
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)


class OpensTwice(Stateful):
    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:
        await super().seed_session(body)
        name = f"{body.resources_session_id}-{len(self.__dict__['open'])}"
        self.__dict__["open"][name] = {}
        return ResourcesSeedSessionResponse(resources_session_id=name)


class RefusesToOpenTwice(Stateful):
    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:
        if body.resources_session_id in self.__dict__["open"]:
            raise ValueError("already open")
        return await super().seed_session(body)


class ClosesOnce(Stateful):
    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        if body.resources_session_id in self.__dict__["closed"]:
            raise ValueError("already closed")
        return await super().close_resources_session(body)


class ClosesOnlyWhatItKnows(Stateful):
    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        if body.resources_session_id not in {*self.__dict__["open"], *self.__dict__["closed"]}:
            raise ValueError("unknown")
        return await super().close_resources_session(body)


class OpensAgain(Stateful):
    async def seed_session(self, body: ResourcesSeedSessionRequest) -> ResourcesSeedSessionResponse:
        self.__dict__["closed"].discard(body.resources_session_id)
        return await super().seed_session(body)


class AnswersAnotherSession(Stateful):
    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        return ResourcesCloseSessionResponse(resources_session_id="another")


def app_of(kind: type[SimpleResourcesServer]) -> Any:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=0, name="numbers", entrypoint="app.py")
    return kind(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()


@pytest.mark.parametrize("seed", [SEED, SEED.model_dump(mode="json")], ids=["model", "plain"])
@pytest.mark.parametrize(("kind", "keeps_state"), [(Stateful, True), (Stateful, False), (Stateless, False)])
def test_servers_that_keep_the_rules_pass(kind: type[SimpleResourcesServer], keeps_state: bool, seed: Any) -> None:
    check_resources_session_contract(app_of(kind), seed, keeps_state=keeps_state)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OpensTwice, "must answer with its `resources_session_id`, `s1`"),
        (RefusesToOpenTwice, "the same seed again must succeed"),
        (ClosesOnce, "a second close must succeed"),
        (ClosesOnlyWhatItKnows, "a close of a session that was never seeded must succeed"),
        (OpensAgain, "a seed that comes after the close of its session must be refused"),
        (Stateless, "a seed that comes after the close of its session must be refused"),
        (AnswersAnotherSession, "a close must answer with its `resources_session_id`"),
    ],
)
def test_a_broken_rule_is_named(kind: type[SimpleResourcesServer], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_resources_session_contract(app_of(kind), SEED, keeps_state=True)


async def test_it_can_be_asked_from_a_running_event_loop() -> None:
    check_resources_session_contract(app_of(Stateful), SEED, keeps_state=True)
