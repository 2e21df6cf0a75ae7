"""Door: a server's tools over MCP."""

from __future__ import annotations

from nemo_gym.servers.mcp_exposure import McpExposure, SessionBody
from nemo_gym.servers.mcp_tools import CatchAll, McpTool

__all__ = ["CatchAll", "McpExposure", "McpTool", "SessionBody"]
