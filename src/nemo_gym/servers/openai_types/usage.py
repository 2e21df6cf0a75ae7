"""Token usage of a response, and its sums. Unknown stays None and makes a sum unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai.types.responses import ResponseUsage
from pydantic import BaseModel, ConfigDict, Field


class _TokenDetails(BaseModel):
    model_config = ConfigDict(extra="allow")


class NeMoGymResponseInputTokensDetails(_TokenDetails):
    """How many input tokens came from the cache; None when the provider did not say."""

    cached_tokens: int | None = None

    @classmethod
    def sum_from_list(cls, details: Sequence[NeMoGymResponseInputTokensDetails]) -> NeMoGymResponseInputTokensDetails:
        """Return the sum; a count that is unknown in one of them is unknown in the sum."""
        return cls.model_validate(_sum_of(details, "cached_tokens"))


class NeMoGymResponseOutputTokensDetails(_TokenDetails):
    """How many output tokens were reasoning; None when the provider did not say."""

    reasoning_tokens: int | None = None

    @classmethod
    def sum_from_list(cls, details: Sequence[NeMoGymResponseOutputTokensDetails]) -> NeMoGymResponseOutputTokensDetails:
        """Return the sum; a count that is unknown in one of them is unknown in the sum."""
        return cls.model_validate(_sum_of(details, "reasoning_tokens"))


class NeMoGymResponseUsage(ResponseUsage):
    """Tokens of one response, or of several."""

    input_tokens_details: NeMoGymResponseInputTokensDetails = Field(  # type: ignore[assignment]  # counts may be None
        default_factory=NeMoGymResponseInputTokensDetails
    )
    output_tokens_details: NeMoGymResponseOutputTokensDetails = Field(  # type: ignore[assignment]
        default_factory=NeMoGymResponseOutputTokensDetails
    )

    @classmethod
    def sum_from_list(cls, usages: Sequence[NeMoGymResponseUsage]) -> NeMoGymResponseUsage:
        """Return the sum of `usages`; a detail that is unknown in one of them is unknown in the sum."""
        return cls(
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            total_tokens=sum(usage.total_tokens for usage in usages),
            input_tokens_details=NeMoGymResponseInputTokensDetails.sum_from_list(
                [usage.input_tokens_details for usage in usages]
            ),
            output_tokens_details=NeMoGymResponseOutputTokensDetails.sum_from_list(
                [usage.output_tokens_details for usage in usages]
            ),
        )


def accumulate_response_usage(
    total: NeMoGymResponseUsage | None, additional: NeMoGymResponseUsage | None
) -> NeMoGymResponseUsage | None:
    """Return the sum as a new object; None on either side is neutral, and both None give None."""
    known = [usage for usage in (total, additional) if usage is not None]
    return NeMoGymResponseUsage.sum_from_list(known) if known else None


def _sum_of(details: Sequence[_TokenDetails], declared: str) -> dict[str, Any]:
    """Sum the declared count, and every other integer count that all of `details` know."""
    dumps = [detail.model_dump() for detail in details]
    names = {name for dump in dumps for name in dump} | {declared}
    sums: dict[str, Any] = {}
    for name in sorted(names):
        counts = [dump.get(name) for dump in dumps]
        if all(isinstance(count, int) for count in counts):
            sums[name] = sum(counts)
        elif name == declared:
            sums[name] = None
    return sums
