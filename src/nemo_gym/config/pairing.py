"""Which agents and models a resources server is declared to work with: `allowed_agents`, `allowed_model_types`.

Looked at before servers start, and again for each row before it is sent: the servers may run another configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_gym.config.names import ALLOW_UNSUPPORTED_PAIRING, ALLOW_UNSUPPORTED_PAIRING_ENV
from nemo_gym.errors import UnsupportedAgentPairingError, UnsupportedModelPairingError, UnsupportedPairingError

ALLOWED_AGENTS, ALLOWED_MODEL_TYPES = "allowed_agents", "allowed_model_types"
PAIRING_ERRORS: Mapping[str, type[UnsupportedPairingError]] = {
    ALLOWED_AGENTS: UnsupportedAgentPairingError,
    ALLOWED_MODEL_TYPES: UnsupportedModelPairingError,
}
_WHAT = {ALLOWED_AGENTS: "agent", ALLOWED_MODEL_TYPES: "model server type"}


def any_pairing_goes(data: Mapping[Any, Any], environ: Mapping[str, str]) -> bool:
    """Return whether the configuration or the environment allows pairings that nobody declared."""
    given = environ.get(ALLOW_UNSUPPORTED_PAIRING_ENV, "").lower()
    return given not in ("", "0", "false") or bool(data.get(ALLOW_UNSUPPORTED_PAIRING))


def pairing_problem(resources_name: str, settings: Mapping[Any, Any], *, field: str, implementation: str) -> str | None:
    """Return why a resources server does not take this implementation, or None when it does, or declares nothing."""
    declared = settings.get(field)
    if not isinstance(declared, list) or not declared or implementation in declared:
        return None
    listed = ", ".join(f"`{name}`" for name in declared)
    return (
        f"`{resources_name}` is not declared to work with {_WHAT[field]} `{implementation}`; "
        f"its `{field}` are {listed}. `--allow-unsupported-pairing` tries it anyway."
    )
