"""Cases with known rewards that a verifier is held to, without a web server and without a model."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from nemo_gym.errors import ConfigError
from nemo_gym.records import codec
from nemo_gym.store import write_atomic

CaseKind: TypeAlias = Literal["full_reward", "zero_reward", "malformed", "determinism"]
Determinism: TypeAlias = Literal["seeded", "stochastic", "unknown"]
Invoke: TypeAlias = Callable[[Any, Any], Awaitable[Any] | Any]

_REQUIRED: tuple[CaseKind, ...] = ("full_reward", "zero_reward", "malformed")


class VerifierFixtureError(ConfigError):
    """A verifier does not do what its cases say, or the cases cannot be used."""


@dataclass(frozen=True, slots=True)
class VerifierFixture:
    """How a verifier is tried: an `app.py` exports one as `VERIFIER_FIXTURE`.

    `server_factory` makes a server for one case; `request_model` parses the case's request; `cases_path` is the JSONL
    file. `invoke(server, request)` replaces `server.verify(request)`; `reseed()` or `reseed(server)` is called before
    each verification, to set random numbers back.
    """

    server_factory: Callable[[], Any]
    request_model: type[BaseModel]
    cases_path: str | Path
    invoke: Invoke | None = None
    reseed: Callable[..., Any] | None = None


class VerifierCase(BaseModel):
    """A line of the file."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: CaseKind
    request: dict[str, Any]
    expected_reward: float | None = None
    expected_error: str | None = None

    @model_validator(mode="after")
    def _one_expectation(self) -> VerifierCase:
        needed, other = ("expected_reward", "expected_error")
        if self.kind == "malformed":
            needed, other = other, needed
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ValueError(f"a case of kind `{self.kind}` has `{needed}`, and no `{other}`")
        return self


@dataclass(frozen=True, slots=True)
class VerifierCaseResult:
    """What a verifier did with one case."""

    name: str
    kind: CaseKind
    reward: float | None = None
    error: str | None = None


async def exercise_verifier_fixture(
    fixture: VerifierFixture,
    *,
    reward_range: Sequence[float],
    higher_is_better: bool = True,
    determinism: Determinism,
    update_expected: bool = False,
) -> tuple[VerifierCaseResult, ...]:
    """Verify each case on a server of its own and return what came out; raises `VerifierFixtureError`.

    There must be a case of full reward, of no reward and of a malformed request, and one of determinism when the
    verifier is `seeded`. Rewards are compared exactly; those of the first two kinds are the ends of `reward_range`.
    With `update_expected` the file gets what came out instead.
    """
    path = Path(fixture.cases_path)
    cases = _read(path)
    _check_kinds(cases, determinism, path)
    worst, best = reward_range if higher_is_better else tuple(reversed(reward_range))
    results = []
    for case in cases:
        result = await _run(fixture, case)
        end = {"full_reward": best, "zero_reward": worst}.get(case.kind)
        if end is not None and result.reward != end:
            raise _failed(path, case, f"its reward is {result.reward}, and `{case.kind}` is {end}")
        if not update_expected:
            _compare(path, case, result)
        results.append(result)
    if update_expected:
        _write(path, cases, results)
    return tuple(replace(result, error=result.error and result.error.splitlines()[0]) for result in results)


def _read(path: Path) -> list[VerifierCase]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise VerifierFixtureError(f"`{path}` cannot be read: {error.strerror}") from error
    cases, names = [], set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            case = VerifierCase.model_validate(codec.decode_object(line))
        except ValueError as error:
            raise VerifierFixtureError(f"`{path}` line {number} is no case: {_said(error)}") from error
        if case.name in names:
            raise VerifierFixtureError(f"`{path}` line {number}: another case is called `{case.name}`")
        names.add(case.name)
        cases.append(case)
    return cases


def _check_kinds(cases: Sequence[VerifierCase], determinism: str, path: Path) -> None:
    if determinism not in get_args(Determinism):
        raise VerifierFixtureError(f"determinism is one of {', '.join(get_args(Determinism))}, not `{determinism}`")
    needed = [*_REQUIRED, *(["determinism"] if determinism == "seeded" else [])]
    missing = [kind for kind in needed if kind not in {case.kind for case in cases}]
    if missing:
        raise VerifierFixtureError(f"`{path}` has no case of kind {', '.join(f'`{kind}`' for kind in missing)}")


async def _run(fixture: VerifierFixture, case: VerifierCase) -> VerifierCaseResult:
    if case.kind == "malformed":
        return VerifierCaseResult(case.name, case.kind, error=await _error_of(fixture, case))
    path = Path(fixture.cases_path)
    try:
        reward = await _reward_of(fixture, case)
        again = await _reward_of(fixture, case) if case.kind == "determinism" else reward
    except Exception as error:
        raise _failed(path, case, f"it raised {type(error).__name__}: {_said(error)}") from error
    if again != reward:
        raise _failed(path, case, f"the same request earned {reward} and then {again}")
    return VerifierCaseResult(case.name, case.kind, reward=reward)


async def _error_of(fixture: VerifierFixture, case: VerifierCase) -> str:
    # An error is what is wanted here, so it is a value.
    [outcome] = await asyncio.gather(_reward_of(fixture, case), return_exceptions=True)
    if isinstance(outcome, BaseException):
        return _said(outcome) + (f"\n{outcome}" if isinstance(outcome, ValidationError) else "")
    raise _failed(Path(fixture.cases_path), case, f"its request was taken, and earned {outcome}")


async def _reward_of(fixture: VerifierFixture, case: VerifierCase) -> float:
    server = fixture.server_factory()
    if fixture.reseed is not None:
        takes_server = bool(inspect.signature(fixture.reseed).parameters)
        seeded = fixture.reseed(server) if takes_server else fixture.reseed()
        if inspect.isawaitable(seeded):
            await seeded
    request = fixture.request_model.model_validate(case.request)
    answer = fixture.invoke(server, request) if fixture.invoke is not None else server.verify(request)
    if inspect.isawaitable(answer):
        answer = await answer
    return float(answer["reward"] if isinstance(answer, dict) else answer.reward)


def _compare(path: Path, case: VerifierCase, result: VerifierCaseResult) -> None:
    if case.expected_error is not None:
        if case.expected_error not in (result.error or ""):
            raise _failed(path, case, f"its error is `{result.error}`, and does not say `{case.expected_error}`")
    elif case.expected_reward != result.reward:
        raise _failed(path, case, f"its reward is {result.reward}, not {case.expected_reward}")


def _write(path: Path, cases: Sequence[VerifierCase], results: Sequence[VerifierCaseResult]) -> None:
    lines = []
    for case, result in zip(cases, results, strict=True):
        line: dict[str, Any] = {"name": case.name, "kind": case.kind, "request": case.request}
        if case.expected_error is None:
            line["expected_reward"] = result.reward
        else:
            holds = case.expected_error in (result.error or "")
            line["expected_error"] = case.expected_error if holds else (result.error or "").splitlines()[0]
        lines.append(codec.encode_line(line))
    write_atomic(path, b"".join(lines))


def _said(error: BaseException) -> str:
    """Return what an error says, on one line and without what changes with a library's version."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}" for item in error.errors())
    return str(error) or type(error).__name__


def _failed(path: Path, case: VerifierCase, what: str) -> VerifierFixtureError:
    return VerifierFixtureError(f"case `{case.name}` of `{path}`: {what}")
