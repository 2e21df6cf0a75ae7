"""Hostile records: each gets a finding, none stops the run, and its neighbours are judged as if it were not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from health_records import record, write_lines

from nemo_gym.health import run_health_checks

DEEP = b"[" * 200_000 + b"]" * 200_000


def with_trajectory(**changes: object) -> bytes:
    value = record()
    value["ng_trajectory"] |= changes
    return json.dumps(value).encode()


def twice(key: str, value: object) -> bytes:
    return b'{"' + key.encode() + b'": ' + json.dumps(value).encode() + b", " + json.dumps(record()).encode()[1:]


HOSTILE = {
    "deep nesting": b'{"_ng_task_index": 1, "extra": ' + DEEP + b"}",
    "deep nesting in a payload": json.dumps(record()).encode().replace(b'{"input": "hi"}', DEEP),
    "deep nesting in a trajectory": b'{"ng_trajectory": {"gaps": ' + DEEP + b"}}",
    "ten megabytes of text": b"x" * 10_000_000,
    "ten megabytes that are cut": b'{"response": {"output": "' + b"y" * 10_000_000,
    "a cut line": json.dumps(record()).encode()[:900],
    "a run of NULs": b"\0" * 5_000,
    "NULs after a record": json.dumps(record()).encode() + b"\0\0",
    "a list": b"[1, 2]",
    "a number": b"1e999",
    "not UTF-8": b'{"reward": "\xff\xfe"}',
    "a task twice": twice("_ng_task_index", 7),
    "a trajectory twice": twice("ng_trajectory", record()["ng_trajectory"]),
    "a trajectory taken back": json.dumps(record()).encode()[:-1] + b', "ng_trajectory": null}',
    "a reward twice": twice("reward", 0.0),
    "identity of wrong types": json.dumps(record(task={"a": 1}, rollout=[2.5])).encode(),
    "a trajectory that is a text": json.dumps(record(ng_trajectory="gone")).encode(),
    **{
        f"{key} of a wrong type": with_trajectory(**{key: odd})
        for key in (
            "task_id",
            "rollout_id",
            "schema_version",
            "invocations",
            "turns",
            "model_calls",
            "tool_calls",
            "gaps",
        )
        for odd in ({"a": [1]},)
    },
    "calls that are numbers": with_trajectory(model_calls=[1, 2, 3]),
    "a turn of another task": with_trajectory(turns=[{**record()["ng_trajectory"]["turns"][0], "task_id": "other"}]),
    "an unknown field": with_trajectory(surprise=True),
    "a later version": with_trajectory(schema_version="9.0"),
}


@pytest.mark.parametrize("workers", [1, 2])
def test_each_hostile_record_has_a_finding_and_its_neighbours_are_healthy(tmp_path: Path, workers: int) -> None:
    lines: list[object] = []
    for number, line in enumerate(HOSTILE.values()):
        lines += [line, record(1000 + number)]
    path = write_lines(tmp_path / "rollouts.jsonl", *lines)
    result = run_health_checks(path, workers=workers, min_bytes_per_worker=1 << 20)
    verdicts = {digest.line: digest for digest in result.rollouts}
    assert len(verdicts) == len(lines)
    for number, name in enumerate(HOSTILE):
        bad, good = verdicts[2 * number + 1], verdicts[2 * number + 2]
        assert {finding.check for finding in bad.findings} - {"rollout_duplicate_identity"} == {"record_unreadable"}, (
            name
        )
        assert (good.verdict, good.task_index) == ("healthy", 1000 + number), name
