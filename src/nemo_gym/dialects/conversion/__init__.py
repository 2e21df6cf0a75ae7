"""Conversion between the three API dialects, through the canonical form, which is Responses.

Every function takes plain JSON objects and returns a fresh one with notes: one sentence for each thing that the other
dialect cannot carry. Nothing is modified in place. What would change the meaning of a request raises
`ConversionError`.
"""

from __future__ import annotations

from nemo_gym.dialects.conversion.chat_request_in import chat_request_to_responses
from nemo_gym.dialects.conversion.chat_request_out import responses_request_to_chat
from nemo_gym.dialects.conversion.chat_results import chat_response_to_responses, responses_to_chat_response
from nemo_gym.dialects.conversion.chat_tools import custom_tools_as_functions
from nemo_gym.dialects.conversion.envelope import is_error, is_failed
from nemo_gym.dialects.conversion.messages_request_in import messages_request_to_responses
from nemo_gym.dialects.conversion.messages_request_out import responses_request_to_messages
from nemo_gym.dialects.conversion.messages_results import (
    messages_response_to_responses,
    responses_to_messages_response,
)
from nemo_gym.dialects.conversion.mint import SYSTEM_MINT, Mint
from nemo_gym.dialects.conversion.namespaces import restore_namespaces
from nemo_gym.dialects.conversion.pairs import ConvertedRequest, convert_request, convert_response
from nemo_gym.dialects.conversion.refusal import ConversionError
from nemo_gym.dialects.conversion.replay import STREAM_HEADERS, replay_events
from nemo_gym.dialects.conversion.streaming import StreamConverter
from nemo_gym.dialects.conversion.tidy import tidy_chat_request, tidy_responses_request, wants_usage
from nemo_gym.dialects.conversion.usages import UNKNOWN_USAGE

__all__ = [
    "STREAM_HEADERS",
    "SYSTEM_MINT",
    "UNKNOWN_USAGE",
    "ConversionError",
    "ConvertedRequest",
    "Mint",
    "StreamConverter",
    "chat_request_to_responses",
    "chat_response_to_responses",
    "convert_request",
    "convert_response",
    "custom_tools_as_functions",
    "is_error",
    "is_failed",
    "messages_request_to_responses",
    "messages_response_to_responses",
    "replay_events",
    "responses_request_to_chat",
    "responses_request_to_messages",
    "responses_to_chat_response",
    "responses_to_messages_response",
    "restore_namespaces",
    "tidy_chat_request",
    "tidy_responses_request",
    "wants_usage",
]
