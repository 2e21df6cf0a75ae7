"""Names of MCP exposure that environments import; all else is loaded when a server asks for it."""

from __future__ import annotations

from typing import Final

NEMO_GYM_MCP_SESSION_TOKEN_HEADER: Final = "X-NeMo-Gym-Session-Token"
NEMO_GYM_MCP_METADATA_KEY: Final = "mcp"
RESERVED_MCP_TOOL_NAMES: Final = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "mcp"})
