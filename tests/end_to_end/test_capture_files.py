"""Captures of real servers: sealed while a collection runs, and counted by the server that writes them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import zstandard
from end_to_end_support import Gym, clean_environment, records, wait_until

ROLLOUTS, KILLS, IN_FLIGHT = 60, 2, 3
SEALED = ".capture.jsonl.zst"
SCRIPT = """\
scripts:
  - name: slow
    match: slow
    steps: [{text: late, delay_s: 60}]
  - name: refused
    match: refused
    steps: [{error: {status: 429}}]
  - name: answered
    steps: [{text: hello}]
"""


def plain_bytes(path: Path) -> bytes:
    """What any zstd tool makes of a sealed capture."""
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(path.read_bytes())


def killed_while_it_seals(gym: Gym, words: list[str | Path], captures: Path) -> None:
    """Start a collector and kill it when it has sealed something more, in the middle of sealing where that is seen."""
    before = {path.name for path in captures.glob(f"*{SEALED}")}
    collector = subprocess.Popen(
        ["gym", *map(str, words)], cwd=gym.folder, env=clean_environment(gym.folder), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        assert collector.poll() is None, "there is more to seal than one collector gets to"
        names = {path.name for path in captures.iterdir()} if captures.is_dir() else set()
        more = {name for name in names if name.endswith(SEALED)} - before
        if len(more) >= 12 or (len(more) >= 3 and any(name.endswith(".tmp") for name in names)):
            break
    collector.kill()
    assert collector.wait(20) == -signal.SIGKILL


def test_captures_that_are_sealed_while_collecting_serve_every_reader(gym: Gym) -> None:
    """Kills, a resume, the health check, `ls`, `show`, `check`, and `unseal`, which gives the bytes back."""
    run, captures = gym.folder / "run", gym.folder / "model-calls"
    observed = ["+observability_enabled=true", f"+model_call_capture_dir={captures}"]
    gym.start(
        *("--resources-server", "ledger", "--model-type", "scripted_model"),
        *(*observed, "+model_call_capture_archive=zstd"),
    )
    gym.run("dataset", "make", "ledger", "-o", "tasks.jsonl", "--size", str(ROLLOUTS // 4))
    words: list[str | Path] = [
        *("eval", "run", "--no-serve", "--agent", "ledger_simple_agent", "-i", "tasks.jsonl"),
        *("-o", run / "rollouts.jsonl", "--num-repeats", "4", "--concurrency", str(IN_FLIGHT), "--resume"),
        gym.head,
    ]
    for _ in range(KILLS):
        killed_while_it_seals(gym, words, captures)
    gym.run(*words)
    rollouts = records(run / "rollouts.jsonl")
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rollouts}) == len(rollouts) == ROLLOUTS
    gym.run("eval", "health-check", run, "--fail-on", "unobserved")

    calls = {row["ng_model_call_capture"]["rollout_id"]: row["ng_model_call_capture"]["calls"] for row in rollouts}
    listed = {each["rollout_id"]: each for each in json.loads(gym.run("capture", "ls", captures, "--json").stdout)}
    assert {name: each["calls"] for name, each in listed.items()} == {name: len(made) for name, made in calls.items()}
    assert all(each["complete"] for each in listed.values())
    unsealed = [name for name, each in listed.items() if not each["sealed"]]
    assert len(unsealed) <= KILLS * IN_FLIGHT, "only what a kill came between its record and its seal for"
    gym.run("capture", "check", captures)
    shown = json.loads(gym.run("capture", "show", "0-0", captures, "--json").stdout)
    assert [call["model_call_id"] for call in shown] == [call["model_call_id"] for call in calls["0-0"]]
    one = json.loads(gym.run("capture", "show", calls["0-0"][0]["model_call_id"], captures).stdout)
    [first] = [row for row in rollouts if row["ng_model_call_capture"]["rollout_id"] == "0-0"]
    assert one["request"] == first["ng_trajectory"]["model_calls"][0]["request"]

    gym.run("capture", "seal", captures)
    assert list(captures.glob("*.capture.jsonl")) == []
    sealed = {path.name: plain_bytes(path) for path in captures.glob(f"*{SEALED}")}
    assert len(sealed) == ROLLOUTS
    gym.run("capture", "unseal", captures)
    plain = {f"{path.name}.zst": path.read_bytes() for path in captures.iterdir() if path.is_file()}
    owner = {name: plain.pop(name) for name in list(plain) if "capture.jsonl" not in name}
    assert plain == sealed, "every byte is back, and nothing half-written is left"
    assert all(name.startswith(".owner") for name in owner)
    gym.run("capture", "check", captures)
    assert f"{ROLLOUTS} of {ROLLOUTS}" in gym.run(*words).stdout, "a resume after everything has nothing to do"


@contextlib.contextmanager
def model_server(gym: Gym, *, captures: Path, small_disk: bool = False) -> Iterator[tuple[str, Path]]:
    """A running model server: its URL, and its capture directory as it is seen from here."""
    (gym.folder / "script.yaml").write_text(SCRIPT)
    settings = [
        *("--resources-server", "example_single_tool_call", "--model-type", "scripted_model"),
        *("+observability_enabled=true", f"+model_call_capture_dir={captures}"),
        f"+policy_model.responses_api_models.scripted_model.scripts_fpath={gym.folder / 'script.yaml'}",
    ]
    within = []
    if small_disk:
        captures.mkdir()
        within = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=1m tmpfs "{captures}" && exec "$0" "$@"']
    starter = gym.start(*settings, within=within)
    instances = json.loads(gym.run("env", "status", "--json", gym.head).stdout)
    [url] = [each["url"] for each in instances if each["name"] == "policy_model"]
    yield url, Path(f"/proc/{starter.pid}/root{captures}") if small_disk else captures


def counters(url: str) -> dict:
    """The counters once nothing is queued any more."""
    found: dict = {}

    def settled() -> bool:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", "/ng-capture/health")
            answer = connection.getresponse()
            assert answer.status == 200
            found.update(json.loads(answer.read()))
        return found["queued"] == 0

    wait_until(settled, what="everything is written")
    return found


async def test_the_capture_counters_of_a_server_add_up_after_all_kinds_of_calls(gym: Gym) -> None:
    with model_server(gym, captures=gym.folder / "model-calls") as (url, captures):
        zero = {"calls": 0, "written": 0, "failed": 0, "queued": 0, "late": 0, "refused": 0, "void": 0}
        assert (
            counters(url).items() >= {"enabled": True, "directory": str(captures), "last_error": None, **zero}.items()
        )
        async with aiohttp.ClientSession() as session:

            async def call(path: str, text: str, **more: object) -> int:
                body = {"input": text, "messages": [{"role": "user", "content": text}], **more}
                async with session.post(url + path, json=body) as answer:
                    await answer.read()
                    return answer.status

            answered = [
                await asyncio.gather(*(call(f"/ng-rollout/{n}-0/v1/responses", "hi") for n in range(8))),
                await asyncio.gather(
                    *(call("/ng-rollout/0-1/v1/chat/completions", "hi", stream=True) for _ in range(4))
                ),
            ]
            assert answered == [[200] * 8, [200] * 4]
            assert await call("/ng-rollout/0-2/v1/responses", "refused") == 429
            assert await call("/v1/responses", "hi") == 200, "no rollout, no record"
            assert await call("/ng-rollout/a%20b/v1/responses", "hi") == 400
            leaving = [asyncio.ensure_future(call(f"/ng-rollout/{n}-3/v1/responses", "slow")) for n in range(3)]
            await asyncio.to_thread(wait_until, lambda: counters(url)["calls"] == 16, what="the slow calls have begun")
            for each in leaving:
                each.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
        await asyncio.to_thread(wait_until, lambda: counters(url)["written"] == 16, what="the calls left are recorded")
        found = counters(url)
        assert found.items() >= {**zero, "calls": 16, "written": 16, "refused": 1, "last_error": None}.items()
        lines = [line for path in captures.glob("*.capture.jsonl") for line in records(path)]
        assert len({line["model_call_id"] for line in lines}) == len(lines) == found["written"]
        categories = sorted(str(line["error_category"]) for line in lines)
        assert categories == sorted(["None"] * 12 + ["cancelled"] * 3 + ["rate_limit"])
        gym.run("capture", "check", gym.folder / "model-calls")


def small_disks_can_be_made() -> bool:
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not small_disks_can_be_made(), reason="needs a mount namespace of its own")
async def test_the_counters_say_what_a_full_disk_refused_and_that_it_has_room_again(gym: Gym) -> None:
    with model_server(gym, captures=gym.folder / "model-calls", small_disk=True) as (url, captures):
        async with aiohttp.ClientSession() as session:

            async def calls(first: int, count: int) -> None:
                for number in range(first, first + count):
                    body = {"input": "hi", "metadata": {"filling": str(number) * 4000}}
                    async with session.post(f"{url}/ng-rollout/0-{number % 2}/v1/responses", json=body) as answer:
                        assert answer.status == 200, "what cannot be recorded is served all the same"
                        assert await answer.json()

            await calls(0, 4)
            assert counters(url).items() >= {"calls": 4, "written": 4, "failed": 0, "last_error": None}.items()
            with contextlib.suppress(OSError), (captures / "ballast").open("wb", buffering=0) as ballast:
                while ballast.write(b"x" * 4096):
                    pass
            await calls(4, 6)
            full = counters(url)
            assert full["calls"] == full["written"] + full["failed"] == 10
            assert full["failed"] >= 4
            assert "No space left" in full["last_error"]
            (captures / "ballast").unlink()
            await calls(10, 4)
        after = counters(url)
        assert (after["calls"], after["failed"], after["written"]) == (14, full["failed"], full["written"] + 4)
        lines = [line for path in captures.glob("*.capture.jsonl") for line in records(path)]
        assert len(lines) == after["written"]
        report = json.loads(gym.run("capture", "check", captures, "--json", code=1).stdout)
        missing = [call for each in report["problems"] for call in each["missing"]]
        assert len({call["model_call_id"] for call in missing}) == len(missing) == after["failed"]
        assert all("No space left" in call["reason"] for call in missing)
