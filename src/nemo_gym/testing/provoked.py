"""Whether a scenario's event truly happened, by what the witnesses wrote. Pure.

A scenario that was not provoked shows nothing, whatever the records say: the agent may never have called the tool that
was to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nemo_gym.testing.scenarios import CANCELLED, SUBAGENT, Scenario
from nemo_gym.testing.witness import WhatHappened


def not_provoked(scenario: Scenario, told: WhatHappened) -> str | None:
    """Return why nobody can say that the event of a scenario happened; None when the witnesses saw it."""
    if not told.model_calls:
        return "the agent never asked the model of this run"
    return _EVENTS[scenario.name](told)


def remarks(scenario: Scenario, told: WhatHappened) -> list[str]:
    """Return what else is worth knowing of how the agent took the event; no row depends on it."""
    refused = scenario.name in _ONCE and told.model_calls and not told.model_calls[-1]["finished"]
    return ["the agent did not ask again"] if refused else []


_ONCE = frozenset({"retry_429", "retry_500", "timeout", "stream_cut"})


def _tools_ran(count: int, *, failed: int = 0) -> Callable[[WhatHappened], str | None]:
    def look(told: WhatHappened) -> str | None:
        ended = [tool["status"] >= 400 for tool in told.tools_ended]
        if len(ended) >= count and sum(ended) >= failed:
            return None
        wanted = f"{count}, {failed} of them failing" if failed else str(count)
        return f"the tools were to be run {wanted}; they ran {len(ended)} times, {sum(ended)} of them failing"

    return look


def _refused_with(status: int) -> Callable[[WhatHappened], str | None]:
    def look(told: WhatHappened) -> str | None:
        seen = any(call["status"] == status for call in told.model_calls)
        return None if seen else f"the model never answered {status}"

    return look


def _second_used_the_first(told: WhatHappened) -> str | None:
    if (problem := _tools_ran(2)(told)) is not None:
        return problem
    first, second = told.tools_ended[0]["output"], told.tools_started[1]["text"]
    return None if second and second in first else "the second tool call did not use what the first one found"


def _usage_omitted(told: WhatHappened) -> str | None:
    seen = any(not call["reports_usage"] for call in told.finished_calls)
    return None if seen else "no answer without token counts came to its end"


def _timed_out(told: WhatHappened) -> str | None:
    return None if any(call["timed_out"] for call in told.model_calls) else "the model never ran into its deadline"


def _stream_cut(told: WhatHappened) -> str | None:
    return None if any(call["cut"] for call in told.model_calls) else "no answer was cut"


def _verifier_failed(told: WhatHappened) -> str | None:
    seen = any(verdict["reward"] is None for verdict in told.verdicts)
    return None if seen else "the verifier was never asked"


def _cancelled(told: WhatHappened) -> str | None:
    if told.before_cut_off is None:
        return "no tool was running that the rollout could be cancelled in"
    _calls, started, ended = told.before_cut_off
    return None if started > ended else "the tool had ended before the rollout was cancelled"


def _subagent(told: WhatHappened) -> str | None:
    seen = any(call["script"].endswith(":child") for call in told.model_calls)
    return None if seen else "no subagent asked the model"


_EVENTS: Mapping[str, Callable[[WhatHappened], str | None]] = MappingProxyType(
    {
        "tool_success": _second_used_the_first,
        "tool_failure": _tools_ran(2, failed=1),
        "parallel_tools": _tools_ran(2),
        "usage_omitted": _usage_omitted,
        "retry_429": _refused_with(429),
        "retry_500": _refused_with(500),
        "timeout": _timed_out,
        "model_error": _refused_with(400),
        "stream_cut": _stream_cut,
        "verifier_failure": _verifier_failed,
        CANCELLED: _cancelled,
        SUBAGENT: _subagent,
    }
)
