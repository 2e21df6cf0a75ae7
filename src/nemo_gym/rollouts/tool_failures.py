"""Which tools failed in a run, from the counts that its records carry. Memory does not grow with the run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failures import cut

NAMES_COUNTED = 1000
"""So many names are told apart: a model may call tools by any name that it makes up."""

_NAMES_SHOWN = 8
_LONGEST_NAME = 60
_PLAIN_NAME = re.compile(r"[\w.:/-]+", re.ASCII)


class ToolFailures:
    """Failed tool calls, added up record by record."""

    def __init__(self) -> None:
        self._of_name: Counter[str] = Counter()
        self._calls = self._failed = self._rollouts = 0

    def counting(self, records: Iterable[JsonObject]) -> Iterator[JsonObject]:
        """Yield the records as they are, and count each."""
        for record in records:
            self.add(record)
            yield record

    def add(self, record: Mapping[str, Any]) -> None:
        """Count the `tools` of a record's `ng_perf_detail`; a record without them says nothing."""
        detail = record.get(keys.PERF_DETAIL)
        tools = detail.get("tools") if isinstance(detail, Mapping) else None
        before = self._failed
        for tool in tools if isinstance(tools, list) else ():
            if not isinstance(tool, Mapping):
                continue
            self._calls += _count(tool, "count")
            if failures := _count(tool, "failures"):
                self._failed += failures
                name = tool.get("tool_name")
                shown = _shown(name) if isinstance(name, str) else "without a name"
                if shown in self._of_name or len(self._of_name) < NAMES_COUNTED:
                    self._of_name[shown] += failures
        self._rollouts += self._failed > before

    def line(self) -> str | None:
        """Return how many tool calls failed, in how many rollouts, and of which tools; None when none did."""
        if not self._failed:
            return None
        shown = sorted(self._of_name.items(), key=lambda item: (-item[1], item[0]))[:_NAMES_SHOWN]
        named = [f"{name} {count}" for name, count in shown]
        if rest := self._failed - sum(count for _, count in shown):
            named.append(f"others {rest}")
        rollouts = f"{self._rollouts} rollout{'' if self._rollouts == 1 else 's'}"
        return f"tool calls failed: {self._failed} of {self._calls}, in {rollouts}: {', '.join(named)}"


def _count(tool: Mapping[str, Any], name: str) -> int:
    value = tool.get(name)
    return value if type(value) is int and value > 0 else 0


def _shown(name: str) -> str:
    """Return a name as a terminal may show it: what is no plain word is shown as JSON, in ASCII."""
    short = cut(name, _LONGEST_NAME)
    return name if short == name and _PLAIN_NAME.fullmatch(name) else json.dumps(short).replace("\x7f", "\\u007f")
