"""`gym env publish`."""

from __future__ import annotations

from typing import Annotated

import typer

from nemo_gym.cli.catalog import CheckedEntry, check_entry, exercise_entry
from nemo_gym.cli.output import note, print_json, show
from nemo_gym.cli.selection import SearchDirOption
from nemo_gym.config import component_search_roots
from nemo_gym.errors import ConfigError


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An environment or a benchmark with a manifest.")],
    *,
    search_dir: SearchDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Check whether an environment is ready to be shown to others; nothing is sent anywhere.

    Its manifest, rows and profile hold, its verifier does what its cases say, and no placeholder is left.
    """
    roots = component_search_roots(search_dir or ())
    entry = check_entry(name, roots, search_dir or ())
    if left := _placeholders(entry):
        raise ConfigError(f"`{entry.manifest_path}` still has placeholders: {', '.join(f'`{key}`' for key in left)}.")
    results = exercise_entry(entry, roots)
    for warning in entry.warnings:
        note(f"Warning: {warning}")
    status = "experimental" if entry.manifest.experimental else "stable"
    if as_json:
        print_json({**entry.as_dict(), "cases": len(results), "status": status})
    else:
        show(f"{entry.as_text()}\n\n✓ The verifier holds in {len(results)} cases. Status: {status}.")
    return 0


def _placeholders(entry: CheckedEntry) -> list[str]:
    manifest = entry.manifest
    left = {
        "description": manifest.description.lower().startswith("todo") or not manifest.description.strip(),
        "authors": any(author.lower().startswith("todo") for author in manifest.authors),
        "licensing": manifest.licensing == "unknown",
    }
    return [key for key, is_left in left.items() if is_left]
