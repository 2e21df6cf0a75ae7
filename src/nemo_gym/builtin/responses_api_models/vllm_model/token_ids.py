"""Token ids of an answer, for training: asked for, found where a backend puts them, moved onto the message. Pure."""

from __future__ import annotations

from typing import Any

from nemo_gym.servers.upstream import UpstreamError

FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
_MARK = "token_id:"


def asking_for_ids(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request that makes the backend tell its token ids and log probabilities; one answer only."""
    asked = {"logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True, "return_token_ids": True}
    return {**body, **asked, "n": 1}


def with_ids(completion: dict[str, Any], *, server: str) -> dict[str, Any]:
    """Return a finished completion with the three fields on its message.

    They may be there already; else the prompt's ids are at the top, and the answer's on the choice or in the names of
    its log probabilities. Raises UpstreamError when some are missing or two places disagree: half of them would train
    on the wrong tokens.
    """
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    message = choice.get("message") if choice is not None else None
    if choice is None or not isinstance(message, dict):
        return completion
    found = {name: message[name] for name in FIELDS if message.get(name) is not None}
    content = (choice.get("logprobs") or {}).get("content") or []
    ids_of_logprobs = _ids_of(content)
    found.setdefault("prompt_token_ids", completion.get("prompt_token_ids") or choice.get("prompt_token_ids"))
    found.setdefault("generation_token_ids", choice.get("token_ids") or ids_of_logprobs)
    found.setdefault("generation_log_probs", [entry.get("logprob") for entry in content] if content else None)
    missing = [name for name in FIELDS if found.get(name) is None]
    if missing:
        raise UpstreamError(f"the model's answer lacks `{missing[0]}`", server=server, code="token_ids_missing")
    generated = found["generation_token_ids"]
    if ids_of_logprobs is not None and list(generated) != ids_of_logprobs:
        raise UpstreamError("the model's answer has two different lists of token ids", server=server)
    if len(generated) != len(found["generation_log_probs"]):
        raise UpstreamError("the model's answer has not one log probability per token", server=server)
    return {**completion, "choices": [{**choice, "message": {**message, **found}}, *(choices or [])[1:]]}


def _ids_of(content: list[Any]) -> list[int] | None:
    names = [str(entry.get("token")) for entry in content if isinstance(entry, dict)]
    if not names or not all(name.startswith(_MARK) for name in names):
        return None
    return [int(name.removeprefix(_MARK)) for name in names]
