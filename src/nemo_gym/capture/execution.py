"""What a handler knows about how it answered, told to the record of the call it is answering.

A model server calls `report_execution(request, upstream_attempted=True, ...)` whenever it knows more. Without a
captured call it does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from nemo_gym.records.codec import JsonObject

FACTS_SCOPE_KEY = "ng_model_call_facts"
OUTCOME_FACTS = ("upstream_attempted", "response_source", "upstream_status_code", "local_response_reason")
"""Written together on a line as soon as one of them is known."""
LIST_FACTS = ("upstream", "conversion_notes")
"""Facts that add up: attempts at the upstream server, and what a conversion between dialects left out."""
OTHER_FACTS = ("upstream_request_sha256", "upstream_request_changes", "usage")

current_facts: ContextVar[JsonObject | None] = ContextVar("ng_model_call_facts", default=None)


def report_execution(scope_or_request: Any = None, **facts: Any) -> None:
    """Add facts to the record of the call being handled; later values replace earlier ones, lists grow.

    `scope_or_request` is the ASGI scope or a request that has it; without one the call of the current task is meant.
    Facts: `upstream_attempted` bool, `response_source` "upstream" or "local", `upstream_status_code` int,
    `local_response_reason` str, `upstream` list of attempts, `conversion_notes` list of str, `upstream_request_sha256`
    str, `upstream_request_changes` object, `usage` object (what the upstream counted, when the answer
    does not say; None says that the counts in the answer are none, but fill a shape that requires numbers).
    Raises TypeError on any other name.
    """
    unknown = facts.keys() - {*OUTCOME_FACTS, *LIST_FACTS, *OTHER_FACTS}
    if unknown:
        raise TypeError(f"no such execution fact: `{sorted(unknown)[0]}`")
    known = _facts_of(scope_or_request)
    if known is None:
        return
    for name, value in facts.items():
        if name in LIST_FACTS:
            known.setdefault(name, []).extend(value)
        else:
            known[name] = value


def _facts_of(scope_or_request: Any) -> JsonObject | None:
    scope = scope_or_request if isinstance(scope_or_request, Mapping) else getattr(scope_or_request, "scope", None)
    found = scope.get(FACTS_SCOPE_KEY) if isinstance(scope, Mapping) else None
    return found if found is not None else current_facts.get()
