"""Door: the types of OpenAI's protocols, and the client, under the path that servers and agents import."""

from __future__ import annotations

from nemo_gym.servers.openai_types import *  # noqa: F403  # the package's `__all__` is the list
from nemo_gym.servers.openai_types import __all__  # noqa: F401
