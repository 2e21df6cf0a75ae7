"""What cannot be converted, and what was converted with a loss."""

from __future__ import annotations

from nemo_gym.errors import GymError

Notes = list[str]
"""What the other dialect cannot carry, one sentence each, naming the place and the kind but never the content."""


class ConversionError(GymError, ValueError):
    """The request asks for what the other dialect cannot express, and leaving it out would change its meaning.

    A server answers 400 with this message. `param` is the place in the request, or None.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)
