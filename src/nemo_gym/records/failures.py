"""A failed rollout as a record: its class, its kind, the typed `RolloutFailureRecord`, the sidecar row.

*Class* (`_ng_failure_class`) is a free label and decides routing and counting; *kind* (`failure_kind`) is a
low-cardinality name, safe as a metric label. Neither decides retry: `_ng_failure_terminal` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failure_kinds import (
    AGENT_REQUEST_FAILED,
    AGENT_RUN_ERROR,
    PROVIDER_UNAVAILABLE,
    FailureStage,
    is_registered,
)
from nemo_gym.records.identity import attempt_of, base_rollout_id
from nemo_gym.records.rows import RolloutKey, rollout_key

ENVIRONMENT_SERVER_FAILED: Final = "environment_server_failed"
JUDGE_INVALID: Final = "judge_invalid"

MAX_TEXT = 2000
"""Characters kept of a failure's reason and exception, the ellipsis included, and of a response body without it."""

Delivery: TypeAlias = Literal["not_sent", "possibly_delivered", "delivered"]

_UNKNOWN_OUTCOME_STATUSES = frozenset({429, 502, 503, 504})
_RETRIED_TIMEOUT_CLASSES = frozenset({"timeout_exceeded", "reference_missing", "eval_missing", "transport_ineligible"})
_NOT_HANDED_OVER = {
    *(keys.REWARD, keys.MASK_SAMPLE, keys.FAILURE_KIND, keys.FAILURE_REASON),
    *(keys.MODEL_CALL_CAPTURE, keys.PERF, keys.PERF_DETAIL),
}
_PROVIDER_WORDS = ("provider", "upstream", "model server", "overloaded", "rate limit")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FailedEpisodeId(_Frozen):
    """Which try failed: the rollout id without its attempt suffix, and the attempt, 0 for the first."""

    rollout_id: str
    attempt: int = Field(default=0, ge=0)


class FailureDetail(_Frozen):
    """Why, in words and, where known, as a kind and a stage. `terminal` means: never retry."""

    failure_reason: str = Field(max_length=MAX_TEXT)
    terminal: bool = False
    failure_kind: str | None = None
    stage: FailureStage | None = None


class RolloutFailureRecord(_Frozen):
    """A rollout that ended without a result (A13). No reward is implied.

    `source` says who reported it; `delivery` whether the request can have reached the server; `http_status` is None
    when no answer came. `episode_id` is None only for a row that had no indices and no id.
    """

    schema_version: Literal[1] = 1
    episode_id: FailedEpisodeId | None
    run_id: str = Field(min_length=1)
    source: Literal["environment", "collector"]
    delivery: Delivery
    failure: FailureDetail
    http_status: int | None = Field(default=None, ge=100, le=599)
    exception_type: str | None = Field(default=None, max_length=MAX_TEXT)

    @model_validator(mode="after")
    def _environment_means_delivered(self) -> RolloutFailureRecord:
        if self.source == "environment" and self.delivery != "delivered":
            raise ValueError('source="environment" requires delivery="delivered"')
        return self


RolloutFailure = RolloutFailureRecord
"""Older name of the same record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailure:
    """The facts of one failed `POST /run`, as the collector saw it."""

    failure_class: str
    kind: str
    delivery: Delivery
    message: str
    exception_type: str
    status: int | None = None
    body: str | None = None
    stage: FailureStage | None = None
    rollout: JsonObject = field(default_factory=dict)
    """What the agent handed over with its error, by the keys of a sidecar row."""


def failure_of_status(status: int, body: str, *, exception_type: str, message: str) -> RunFailure:
    """Return the failure that an HTTP status means.

    429, 502, 503 and 504 leave open what happened to the rollout; every other status means that it ran and broke.
    """
    unknown = status in _UNKNOWN_OUTCOME_STATUSES
    kind = AGENT_REQUEST_FAILED if unknown else AGENT_RUN_ERROR
    lowered = body.lower()
    if status in {502, 503, 504} and any(word in lowered for word in _PROVIDER_WORDS):
        kind = PROVIDER_UNAVAILABLE
    return RunFailure(
        failure_class=AGENT_REQUEST_FAILED if unknown else AGENT_RUN_ERROR,
        kind=kind,
        delivery="possibly_delivered" if status in {502, 503, 504} else "delivered",
        message=message,
        exception_type=exception_type,
        status=status,
        body=body,
    )


def with_rollout(failure: RunFailure, handed_over: object) -> RunFailure:
    """Return the failure with what its agent handed over: the response, evidence, and what kind of failure it was.

    Nothing that decides where the row goes or what it counts for is taken: no reward, no class, no mark of collection.
    """
    if not isinstance(handed_over, Mapping):
        return failure
    kind, stage = handed_over.get(keys.FAILURE_KIND), handed_over.get(keys.FAILURE_STAGE)
    return replace(
        failure,
        kind=kind if isinstance(kind, str) and is_registered(kind) else failure.kind,
        stage=stage if stage in get_args(FailureStage) else failure.stage,
        rollout={key: value for key, value in handed_over.items() if _may_be_handed_over(key)},
    )


def _may_be_handed_over(key: str) -> bool:
    if key.startswith("_ng_"):
        return key == keys.FAILURE_PARTIAL_RESPONSE
    return key not in _NOT_HANDED_OVER


def failure_record(
    row: Mapping[str, Any], failure: RunFailure, *, run_id: str, terminal: bool = False
) -> RolloutFailureRecord:
    """Return the typed record of a failed `/run` of this row."""
    base = base_rollout_id(row)
    return RolloutFailureRecord(
        episode_id=None if base is None else FailedEpisodeId(rollout_id=base, attempt=attempt_of(row)),
        run_id=run_id,
        source="collector",
        delivery=failure.delivery,
        failure=FailureDetail(
            failure_reason=cut(failure.message), terminal=terminal, failure_kind=failure.kind, stage=failure.stage
        ),
        http_status=failure.status if failure.status is not None and 100 <= failure.status <= 599 else None,
        exception_type=cut(failure.exception_type),
    )


def environment_failure_record(
    row: Mapping[str, Any], result: Mapping[str, Any], *, run_id: str
) -> RolloutFailureRecord:
    """Return the typed record of a rollout that its environment server reported as failed."""
    base = base_rollout_id(row)
    kind, stage = result.get(keys.FAILURE_KIND), result.get(keys.FAILURE_STAGE)
    return RolloutFailureRecord(
        episode_id=None if base is None else FailedEpisodeId(rollout_id=base, attempt=attempt_of(row)),
        run_id=run_id,
        source="environment",
        delivery="delivered",
        failure=FailureDetail(
            failure_reason=cut(str(result.get(keys.FAILURE_MESSAGE) or "no reason given")),
            terminal=bool(result.get(keys.FAILURE_TERMINAL)),
            failure_kind=kind if isinstance(kind, str) else None,
            stage=stage if stage in get_args(FailureStage) else None,
        ),
    )


def sidecar_fields(failure: RunFailure) -> JsonObject:
    """Return the flat diagnostics of a failed `/run`, without identity."""
    stage = {} if failure.stage is None else {keys.FAILURE_STAGE: failure.stage}
    return {
        **stage,
        keys.FAILURE_CLASS: failure.failure_class,
        keys.FAILURE_TYPE: failure.exception_type,
        keys.FAILURE_MESSAGE: failure.message,
        keys.FAILURE_HTTP_STATUS: failure.status,
        keys.FAILURE_RESPONSE_BODY: None if failure.body is None else _body(failure.body),
        keys.FAILURE_KIND: failure.kind,
        keys.FAILURE_REASON: cut(failure.message),
    }


def _body(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text`, or its first `limit - 1` characters and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut_middle(text: str, limit: int) -> str:
    """Return `text`, or its beginning and its end around an ellipsis: what happened, and where."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} … {text[-(limit - limit // 2 - 3) :]}"


def is_terminal_failure(record: Mapping[str, Any], *, retry_terminal_timeouts: bool = False) -> bool:
    """Return whether a sidecar row forbids another try of its rollout."""
    if retry_terminal_timeouts:
        label = record.get(keys.FAILURE_CLASS)
        if isinstance(label, str) and label in _RETRIED_TIMEOUT_CLASSES:  # an agent may answer anything
            return False
        if label == "skipped":
            return True
    return bool(record.get(keys.FAILURE_TERMINAL))


def is_attempt(record: Mapping[str, Any]) -> bool:
    """Return whether a sidecar row counts as a try: omitted rows and errors that ended a run do not."""
    return not record.get(keys.OMITTED_ROLLOUT) and not record.get(keys.UNROUTED_RUN_ERROR)


def observed_elapsed(record: Mapping[str, Any]) -> float | None:
    """Return how long the rollout took in seconds, as its agent measured it; None when unknown or not positive."""
    response = record.get(keys.RESPONSE)
    metadata = response.get("metadata") if isinstance(response, Mapping) else None
    nested = metadata.get(keys.ELAPSED_SECONDS) if isinstance(metadata, Mapping) else None
    for value in (record.get(keys.ELAPSED_SECONDS), nested):
        try:
            seconds = float(value) if value is not None else 0.0
        except (TypeError, ValueError, OverflowError):
            continue
        if 0 < seconds < math.inf:
            return seconds
    return None


def count_label(record: Mapping[str, Any]) -> str:
    """Return the name under which a failure is counted: its kind, else its class, else `unknown`."""
    return str(record.get(keys.FAILURE_KIND) or record.get(keys.FAILURE_CLASS) or "unknown")


def prior_failure(record: Mapping[str, Any], attempt: int) -> JsonObject:
    """Return what a later success says of a failed try of its rollout."""
    return {"class": record.get(keys.FAILURE_CLASS), "kind": record.get(keys.FAILURE_KIND), "attempt": attempt}


def latest_failures(rows: Iterable[JsonObject]) -> dict[RolloutKey, JsonObject]:
    """Return the newest sidecar row of each rollout, by (task, rollout); rows without usable indices are of none.

    An interrupted try hides older failures of its rollout; a try that never started, and an error that ended the run,
    do not.
    """
    latest: dict[RolloutKey, JsonObject] = {}
    for row in rows:
        if row.get(keys.UNROUTED_RUN_ERROR) or row.get(keys.DISPATCH_DRAINED):
            continue
        key = rollout_key(row)
        if key is not None:
            latest[key] = row
    return latest
