"""A prompt longer than the model's context: recognised by what the endpoint says, answered as a length stop. Pure."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from nemo_gym.records import codec
from nemo_gym.servers.upstream import UpstreamError

_CODES = {"context_length_exceeded", "exceed_context_size_error"}
_PHRASES = re.compile(
    r"maximum context length|context length (?:of|is)|exceeds? the (?:available |model'?s? )?(?:maximum )?context"
    r"|longer than the (?:model'?s? )?(?:maximum )?(?:context|model) length"
    r"|(?:prompt|input) is too long\b|too long to fit into the model|token count .{0,40}exceeds the maximum number",
    re.IGNORECASE,
)


def is_context_overflow(error: UpstreamError) -> bool:
    """Return whether a refusal says that the prompt does not fit, by its code first, else by a known phrase."""
    if error.status != 400 or error.response_content is None:
        return False
    try:
        body: Any = codec.decode_object(error.response_content)
    except ValueError:
        return False
    inner = body.get("error") if isinstance(body.get("error"), dict) else body
    if any(isinstance(said, str) and said in _CODES for said in (inner.get("code"), inner.get("type"))):
        return True
    message = inner.get("message") or inner.get("detail") or inner.get("error")
    return isinstance(message, str) and _PHRASES.search(message) is not None


def empty_completion(model: str) -> dict[str, Any]:
    """Return a Chat completion without content that stopped for length; it counted no tokens, so it has no usage."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}],
    }
