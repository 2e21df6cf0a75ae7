"""From any dialect to any other: requests on their way to a backend, finished answers on their way back."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_gym.dialects.conversion.chat_request_in import chat_request_to_responses
from nemo_gym.dialects.conversion.chat_request_out import responses_request_to_chat
from nemo_gym.dialects.conversion.chat_results import chat_response_to_responses, responses_to_chat_response
from nemo_gym.dialects.conversion.fields import EXTRA_BODY, extra_body_of
from nemo_gym.dialects.conversion.messages_request_in import messages_request_to_responses
from nemo_gym.dialects.conversion.messages_request_out import responses_request_to_messages
from nemo_gym.dialects.conversion.messages_results import (
    messages_response_to_responses,
    responses_to_messages_response,
)
from nemo_gym.dialects.conversion.mint import SYSTEM_MINT, Mint
from nemo_gym.dialects.conversion.namespaces import restore_namespaces
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_object
from nemo_gym.dialects.conversion.tidy import tidy_responses_request
from nemo_gym.dialects.names import Dialect
from nemo_gym.records.codec import JsonObject, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedRequest:
    """A request in the backend's dialect, the same in the canonical form, and what was lost on the way."""

    body: JsonObject
    canonical: JsonObject
    notes: Notes


def convert_request(
    body: JsonObject, source: Dialect, target: Dialect, *, reasoning_key: str | None = None
) -> ConvertedRequest:
    """Return a client's request for a backend of another dialect, without `stream`.

    `reasoning_key` is where a chat backend reads the reasoning of earlier turns; None puts it into the text as
    `<think>` blocks. Raises ConversionError for what the backend cannot honour.
    """
    plain = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    if source == "responses":
        canonical, notes = tidy_responses_request(plain)
    elif source == "chat":
        canonical, notes = chat_request_to_responses(plain)
    else:
        canonical, notes = messages_request_to_responses(plain)
        canonical.pop("stream", None)
    if target == "responses":
        return ConvertedRequest(body=_without_carried(canonical, body, notes), canonical=canonical, notes=notes)
    if target == "chat":
        converted, more = responses_request_to_chat(canonical, reasoning_key=reasoning_key)
    else:
        converted, more = responses_request_to_messages(canonical)
    return ConvertedRequest(body=converted, canonical=canonical, notes=[*notes, *more])


def convert_response(
    answer: JsonObject,
    source: Dialect,
    target: Dialect,
    *,
    request: JsonObject,
    client_request: JsonObject,
    requested_model: str | None,
    think_tags: bool | None = None,
    mint: Mint = SYSTEM_MINT,
) -> tuple[JsonObject, Notes]:
    """Return a backend's finished answer in the client's dialect, and what was lost.

    `request` is the canonical form of what was asked, whose settings a Response echoes; `client_request` what the
    client sent, whose namespaces calls are mapped back to. Raises ConversionError when token ids are incomplete.
    """
    if source == target:
        return answer, []
    notes: Notes = []
    canonical = answer
    if source == "chat":
        canonical, notes = chat_response_to_responses(answer, request=request, think_tags=think_tags, mint=mint)
    elif source == "messages":
        canonical, notes = messages_response_to_responses(answer, request=request, mint=mint)
    if target == "responses":
        return restore_namespaces(canonical, request=client_request), notes
    back = responses_to_chat_response if target == "chat" else responses_to_messages_response
    converted, more = back(canonical, requested_model=requested_model, mint=mint)
    return converted, [*notes, *more]


def _without_carried(canonical: JsonObject, body: JsonObject, notes: Notes) -> JsonObject:
    """Return a request for a Responses backend: what only travelled for chat backends is dropped, and noted."""
    metadata = as_object(canonical.get("metadata"))
    if EXTRA_BODY not in metadata:
        return canonical
    own = extra_body_of(as_object(body.get("metadata")))
    carried = [name for name in extra_body_of(metadata) if name not in own]
    notes.extend(f"`{name}` dropped: Responses has no such setting" for name in carried)
    kept = {key: value for key, value in metadata.items() if key != EXTRA_BODY}
    if own:
        kept[EXTRA_BODY] = encode(own).decode()
    sent = {key: value for key, value in canonical.items() if key != "metadata"}
    return {**sent, "metadata": kept} if kept else sent
