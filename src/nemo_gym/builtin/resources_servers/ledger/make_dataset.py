"""Makes rows for the `ledger` environment: `gym dataset make ledger -o rows.jsonl`.

A task names three accounts and asks to even out some of them. Each row also names its script (`metadata.script`), so
that `scripted_model` can play it: the scripts are written by `write_scripts`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

ACCOUNTS = ("checking", "savings", "travel")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "list_accounts",
        "description": "List the names of all accounts.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        "strict": False,
    },
    {
        "type": "function",
        "name": "get_balance",
        "description": "Get the balance of one account, in cents.",
        "parameters": {
            "type": "object",
            "properties": {"account": {"type": "string"}},
            "required": ["account"],
            "additionalProperties": False,
        },
        "strict": False,
    },
    {
        "type": "function",
        "name": "transfer",
        "description": "Move cents from one account to another.",
        "parameters": {
            "type": "object",
            "properties": {
                "source": {"type": "string"},
                "target": {"type": "string"},
                "amount": {"type": "integer", "minimum": 1},
            },
            "required": ["source", "target", "amount"],
            "additionalProperties": False,
        },
        "strict": False,
    },
]


def make_rows(*, size: int = 4, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield `size` rows; the same seed gives the same rows. Amounts are in cents."""
    rng = random.Random(seed)
    for _ in range(size):
        source, target, other = rng.sample(ACCOUNTS, 3)
        amount = rng.randrange(5, 100) * 100
        start = {
            source: amount + rng.randrange(10, 100) * 100,
            target: rng.randrange(10, 100) * 100,
            other: rng.randrange(10, 100) * 100,
        }
        end = dict(start)
        end[source] -= amount
        end[target] += amount
        yield {
            "responses_create_params": {
                "input": [
                    {
                        "role": "user",
                        "content": f"Move {amount} cents from {source} to {target}, then say how much {source} holds.",
                    }
                ],
                "tools": TOOLS,
                "metadata": {"script": "ledger_transfer"},
            },
            "initial_balances": start,
            "expected_balances": end,
        }
