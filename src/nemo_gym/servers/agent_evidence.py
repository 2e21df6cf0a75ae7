"""Evidence on its way from an agent's own handler to its `/run`, on keys that no verifier sees.

`/v1/responses` answers a Response; `/run` sends that Response to the verifier. Evidence travels on it under private
keys, and is taken off before it is verified.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from pydantic import BaseModel

from nemo_gym.records import keys

_PUBLIC_OF = {
    keys.PRIVATE_AGENT_OBSERVATIONS: keys.AGENT_OBSERVATIONS,
    keys.PRIVATE_TRAJECTORY: keys.TRAJECTORY,
}


def carry_evidence(
    response: BaseModel | MutableMapping[str, Any],
    *,
    observations: BaseModel | Mapping[str, Any] | None = None,
    trajectory: BaseModel | Mapping[str, Any] | None = None,
) -> None:
    """Put an observation bundle and a producer trajectory on a Response, for `/run` of the same agent."""
    for key, value in ((keys.PRIVATE_AGENT_OBSERVATIONS, observations), (keys.PRIVATE_TRAJECTORY, trajectory)):
        if value is None:
            continue
        plain = value.model_dump(mode="json", by_alias=True) if isinstance(value, BaseModel) else dict(value)
        if isinstance(response, BaseModel):
            if response.model_extra is None:
                raise TypeError(f"`{type(response).__name__}` keeps no further keys, so it cannot carry evidence")
            response.model_extra[key] = plain
        else:
            response[key] = plain


def take_evidence(response: MutableMapping[str, Any]) -> dict[str, Any]:
    """Take the private evidence off a Response and return it under its public keys; {} when there is none."""
    evidence: dict[str, Any] = {}
    for private, public in _PUBLIC_OF.items():
        value = response.pop(private, None)
        if value is not None:
            evidence[public] = value
    return evidence


def attach_evidence(result: MutableMapping[str, Any], evidence: Mapping[str, Any]) -> None:
    """Put evidence beside a verifier's result; what the verifier returned under the same key is kept."""
    for key, value in evidence.items():
        if result.get(key) is None:
            result[key] = value
