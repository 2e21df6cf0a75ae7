"""The kit as one function, for a test suite of one's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from nemo_gym.errors import RunFailedError, UsageError
from nemo_gym.testing.conformance import ConformanceReport

_JUDGED = (0, 1)
_MESSAGE_LENGTH = 4000


def run_conformance(
    *,
    agent: str | None = None,
    command: str | None = None,
    subagent_tool: str | None = None,
    skip: Sequence[str] = (),
    search_dirs: Sequence[str | Path] = (),
    output_dir: str | Path | None = None,
    settings: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> ConformanceReport:
    """Run `gym conformance` in a process of its own, and return its report; blocks for the time of the scenarios.

    Give either `agent`, the name of an agent server, or `command`, a program that takes a base URL. `settings`: further
    settings by their dotted keys. `cwd`: where the command is run. Raises `UsageError` for a mistake in what was asked,
    and `RunFailedError` when no report came out; an agent that fulfils nothing raises nothing.
    """
    words = [sys.executable, "-m", "nemo_gym.cli.main", "conformance", "--json"]
    options = {"--agent": agent, "--command": command, "--subagent-tool": subagent_tool, "--output-dir": output_dir}
    for name, value in options.items():
        words += [] if value is None else [name, str(value)]
    for name, values in (("--skip", skip), ("--search-dir", search_dirs)):
        for value in values:
            words += [name, str(value)]
    words += [f"++{key}={value}" for key, value in (settings or {}).items()]
    done = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    said = done.stderr.decode("utf-8", "replace")[-_MESSAGE_LENGTH:]
    if done.returncode == UsageError.exit_code:
        raise UsageError(said.strip())
    if done.returncode not in _JUDGED or not done.stdout.strip():
        raise RunFailedError(f"`gym conformance` ended with {done.returncode} and no report: {said.strip()}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=ConformanceReport)
