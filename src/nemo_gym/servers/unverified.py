"""A rollout whose verification failed: what the agent did is handed over with the error, so that it is not lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_gym.errors import RemoteError


class UnverifiedError(RemoteError):
    """The verifier failed or was not reached after the agent had done its work.

    `rollout` holds what is known of the rollout, by the keys of a failure row; there is no reward in it. The cause is
    what went wrong, and what is said of it.
    """

    def __init__(self, *, server: str, status: int | None, rollout: Mapping[str, Any]) -> None:
        self.rollout = dict(rollout)
        super().__init__(f"`{server}` did not verify the rollout", server=server, status=status)
