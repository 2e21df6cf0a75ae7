"""Where container images are pulled from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def rewrite_image(image: str | None, rewrites: Iterable[Mapping[str, str]]) -> str | None:
    """Return `image` with the first prefix that matches replaced; each rewrite is `{"from": prefix, "to": prefix}`."""
    if image is None:
        return None
    for rewrite in rewrites:
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image.removeprefix(rewrite["from"])
    return image
