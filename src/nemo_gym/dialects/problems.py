"""Names of what can be wrong with a stream and still be read: they are listed with the record of the call.

Names are stable; each says what happened, none of them fails the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

STREAM_PROBLEMS: Mapping[str, str] = MappingProxyType(
    {
        "args_unparsable": "a tool call's arguments are not JSON; the text is kept",
        "block_start_missing": "a delta came for a content block that never started; the block was made",
        "choice_not_object": "an entry of `choices` was no object; it was skipped",
        "choices_not_list": "`choices` was neither a list nor null; it was skipped",
        "content_encoding_broken": "the body is not what its content encoding says; reading stopped there",
        "content_encoding_unsupported": "the content encoding cannot be undone here; the body was not read",
        "control_character": "a JSON string held a raw control character; it was kept",
        "event_cut": "the body ended inside an event; that event was skipped",
        "event_failed": "an event had a shape that could not be handled; it was skipped",
        "event_not_json": "an event's data is not JSON; it was skipped",
        "event_not_object": "an event's data is JSON but no object; it was skipped",
        "event_shape": "a known event lacks what it must carry; it was skipped",
        "index_missing": "an event of a content block names no block; the last one was taken",
        "index_reused": "two calls, blocks or items used one index; they were kept apart",
        "invalid_utf8": "an event was not UTF-8; bad bytes became U+FFFD",
        "item_start_missing": "an event came for an output item that never started; the item was made",
        "lone_surrogate": "half of a surrogate pair stayed alone; it became U+FFFD",
        "message_start_missing": "content came without `message_start`; a message was made",
        "message_start_repeated": "`message_start` came again; its known values were taken over",
        "non_finite_number": "a number was NaN or infinite; it became null",
        "reassembly_failed": "the pieces could not be put together; there is no response",
        "sequence_gap": "`sequence_number` skipped a value; an event may be missing",
        "tool_call_not_object": "an entry of `tool_calls` was no object; it was skipped",
        "unknown_event": "an event or delta of a kind that is not known; it was skipped or merged",
        "usage_not_object": "`usage` was neither an object nor null; it was skipped",
    }
)
