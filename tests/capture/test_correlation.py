from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym import rollout_correlation as door
from nemo_gym.capture import RolloutContextMiddleware, current_rollout_id, rollout_context, split_rollout_path
from nemo_gym.capture.correlation import (
    apply_rollout_prefix,
    maybe_rollout_id_from_run_body,
    rollout_path_prefix,
    url_path_for_request,
)


def test_prefixes_are_made_and_taken_apart_alike() -> None:
    for options in (
        {},
        {"token_capture": True},
        {"invocation_id": "root/sub é"},
        {"token_capture": True, "invocation_id": "x"},
    ):
        prefix = rollout_path_prefix("0-0", **options)  # type: ignore[arg-type]
        from urllib.parse import unquote

        sent = prefix + "/v1/messages"
        route = split_rollout_path(unquote(sent), sent.encode())
        assert route is not None
        assert (route.rollout_id, route.rest) == ("0-0", "/v1/messages")
        assert route.invocation_id == options.get("invocation_id")
        assert route.token_capture is options.get("token_capture", False)
    assert rollout_path_prefix(None) == ""
    assert rollout_path_prefix("0-0") == "/ng-rollout/0-0"
    with pytest.raises(ValueError):
        rollout_path_prefix("a/b")


def test_a_root_url_gets_the_prefix_without_its_trailing_slash_c10() -> None:
    assert apply_rollout_prefix("http://h:1/", "0-0") == "http://h:1/ng-rollout/0-0"
    assert apply_rollout_prefix("http://h:1", None) == "http://h:1"


class RunRequest(BaseModel):
    model_config = ConfigDict(extra="allow")
    capture_rollout_id: str | None = Field(default=None, alias="_ng_rollout_id", exclude=True)


@pytest.mark.parametrize("make", [dict, lambda row: RunRequest.model_validate(row)])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"_ng_task_index": 0, "_ng_rollout_index": 0}, "0-0"),
        ({"_ng_task_index": 12, "_ng_rollout_index": 3, "_ng_attempt_index": 2}, "12-3-a2"),
        ({"_ng_rollout_id": "trainA.7", "_ng_attempt_index": 1}, "trainA.7-a1"),
        ({"_ng_task_index": 1, "_ng_rollout_index": 2, "_ng_attempt_index": 0}, "1-2"),
        ({"_ng_task_index": 1}, None),
        ({}, None),
    ],
)
def test_the_id_comes_from_the_run_request_c11(make: Any, row: dict[str, Any], expected: str | None) -> None:
    assert maybe_rollout_id_from_run_body(make(row)) == expected


def test_an_unusable_explicit_id_is_never_repaired() -> None:
    for bad in ("../x", "a b", "x\n"):
        with pytest.raises(ValueError):
            maybe_rollout_id_from_run_body({"_ng_rollout_id": bad})


def test_an_inbound_prefix_is_carried_on_c8() -> None:
    def request(path: str, **parameters: str) -> Any:
        return SimpleNamespace(scope={"path": path}, path_params=parameters)

    assert url_path_for_request("/v1/responses", None) == "/v1/responses"
    assert url_path_for_request("/v1/responses", request("/v1/responses")) == "/v1/responses"
    inbound = request("/ng-rollout/0-0/v1/responses", rollout_id="0-0")
    assert url_path_for_request("/v1/chat/completions", inbound) == "/ng-rollout/0-0/v1/chat/completions"
    inbound = request("/ng-rollout/0-0/training-token-capture/v1/responses", rollout_id="0-0")
    assert url_path_for_request("/v1/responses", inbound) == "/ng-rollout/0-0/training-token-capture/v1/responses"


def test_contexts_nest() -> None:
    with rollout_context("a"):
        with rollout_context("b"):
            assert current_rollout_id() == "b"
        assert current_rollout_id() == "a"
    assert current_rollout_id() is None


async def test_the_context_middleware_strips_once_and_carries_on(tools: Any) -> None:
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        carried = url_path_for_request("/v1/responses", SimpleNamespace(scope=scope))
        seen.append((scope["path"], scope["raw_path"], current_rollout_id(), carried))

    app = RolloutContextMiddleware(RolloutContextMiddleware(inner))
    await tools.call(app, "/ng-rollout/a/verify")
    await tools.call(app, "/ng-rollout/a/ng-rollout/b/verify")
    await tools.call(app, "/ng-rollout/a%20b/verify")
    await tools.call(app, "/verify")
    assert seen == [
        ("/verify", b"/verify", "a", "/ng-rollout/a/v1/responses"),
        ("/ng-rollout/b/verify", b"/ng-rollout/b/verify", "a", "/ng-rollout/a/v1/responses"),
        ("/verify", b"/verify", None, "/v1/responses"),
        ("/verify", b"/verify", None, "/v1/responses"),
    ]


def test_the_door_opens_to_the_same_things() -> None:
    assert door.RolloutContextMiddleware is RolloutContextMiddleware
    assert sorted(door.__all__) == door.__all__
    assert all(hasattr(door, name) for name in door.__all__)
