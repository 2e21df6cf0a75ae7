"""The public names of failure kinds, by their newer path."""

from nemo_gym.failure_kinds import *  # noqa: F403
from nemo_gym.failure_kinds import __all__  # noqa: F401 - also what the star means
