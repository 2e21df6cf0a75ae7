"""Door: what agent servers are written with."""

from __future__ import annotations

from fastapi import Body

from nemo_gym.servers.agent import BaseResponsesAPIAgent, BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.servers.agent_evidence import attach_evidence, carry_evidence, take_evidence

__all__ = [
    "BaseResponsesAPIAgent",
    "BaseResponsesAPIAgentConfig",
    "Body",
    "SimpleResponsesAPIAgent",
    "attach_evidence",
    "carry_evidence",
    "take_evidence",
]
