"""Door: what agent servers are written with."""

from __future__ import annotations

from fastapi import Body

from nemo_gym.servers.agent import BaseResponsesAPIAgent, BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.servers.agent_evidence import attach_evidence, carry_evidence, take_evidence
from nemo_gym.servers.agent_session_types import (
    AgentCloseSessionRequest,
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSeedSessionResponse,
    DirectHttpToolAccess,
    McpToolAccess,
)
from nemo_gym.servers.agent_sessions import AgentSession

__all__ = [
    "AgentCloseSessionRequest",
    "AgentCloseSessionResponse",
    "AgentSeedSessionRequest",
    "AgentSeedSessionResponse",
    "AgentSession",
    "BaseResponsesAPIAgent",
    "BaseResponsesAPIAgentConfig",
    "Body",
    "DirectHttpToolAccess",
    "McpToolAccess",
    "SimpleResponsesAPIAgent",
    "attach_evidence",
    "carry_evidence",
    "take_evidence",
]
