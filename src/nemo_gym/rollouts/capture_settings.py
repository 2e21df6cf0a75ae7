"""Which capture settings hold when servers and collector each have their own (A1, A2, C4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.capture import capture_archive_from_config
from nemo_gym.errors import ConfigError
from nemo_gym.records.keys import MODEL_CALL_CAPTURE_DIR, OBSERVABILITY_ENABLED


class CaptureSettings(NamedTuple):
    """The directories to read captures from, none when observability is off; and a warning for the user, or "".

    `archive`: a capture is sealed once its rollout's record is written.
    """

    capture_dirs: list[Path]
    warning: str
    archive: bool = False


def reconciled(servers: Mapping[str, Any], own: Mapping[str, Any]) -> CaptureSettings:
    """Return the settings of a collection: the servers' ones, unless the collector's explicit ones contradict.

    `servers` is the head server's configuration, `own` the collector's. A differing directory, and capture that is
    wanted here but off at the servers, raise ConfigError naming both sides; capture on there and explicitly off here
    is allowed, with a warning.
    """
    there, here = bool(servers.get(OBSERVABILITY_ENABLED)), own.get(OBSERVABILITY_ENABLED)
    if here and not there:
        raise ConfigError(
            f"`{OBSERVABILITY_ENABLED}` is true here but off at the running servers, so nothing would be captured. "
            f"Start them with `+{OBSERVABILITY_ENABLED}=true +{MODEL_CALL_CAPTURE_DIR}=<absolute directory>`, "
            "or leave it out here."
        )
    if not there:
        return CaptureSettings([], "")
    directory, wanted = servers.get(MODEL_CALL_CAPTURE_DIR), own.get(MODEL_CALL_CAPTURE_DIR)
    if wanted is not None and Path(str(wanted)) != Path(str(directory)):
        raise ConfigError(
            f"`{MODEL_CALL_CAPTURE_DIR}` is `{wanted}` here and `{directory}` at the running servers. "
            "Both must be the same; leave it out here to use the servers' directory."
        )
    if here is False:
        return CaptureSettings(
            [],
            f"the servers capture model calls into `{directory}`, but `{OBSERVABILITY_ENABLED}` is false here: "
            "records will hold no evidence. Leave it out here to collect it.",
        )
    if not directory:
        raise ConfigError(
            f"the running servers have `{OBSERVABILITY_ENABLED}` without `{MODEL_CALL_CAPTURE_DIR}`; restart with both"
        )
    return CaptureSettings([Path(str(directory))], "", archive=capture_archive_from_config({**servers, **own}))
