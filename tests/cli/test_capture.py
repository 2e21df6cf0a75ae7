"""`gym capture`: what a capture directory holds, whether it is whole, and its compressed form."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.open_calls import OpenCallLedger
from nemo_gym.cli.main import run

CALL = {
    "model_call_id": "c" * 32,
    "dialect": "chat",
    "status_code": 200,
    "latency_ms": 12.4,
    "conversion_notes": ["the seed is left out"],
    "request": {"model": "m", "messages": []},
    "response": {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
}


@pytest.fixture
def store(tmp_path: Path) -> CaptureStore:
    store = CaptureStore(tmp_path / "run" / "model-calls")
    store.record("0-0", CALL)
    store.record("0-1", {"model_call_id": "d" * 32, "error_category": "timeout"})
    return store


def test_ls_lists_rollouts_also_of_folders_below(store: CaptureStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.seal("0-0")
    assert run(["capture", "ls", str(store.root.parents[1])]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["ROLLOUT", "CALLS", "ERRORS", "SIZE", "STATE"]
    assert first.split()[:3] == ["0-0", "1", "0"]
    assert first.endswith("sealed")
    assert second.split()[:3] == ["0-1", "1", "1"]
    assert run(["capture", "ls", "--json", str(store.root)]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(each["rollout_id"], each["sealed"], each["complete"]) for each in listed] == [
        ("0-0", True, True),
        ("0-1", False, True),
    ]


def test_show_a_rollout_and_a_call(store: CaptureStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", "show", "0-0", str(store.root)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "0", "c" * 32, "chat", "m", "200", "stop", "3", "4", "12",
    ]  # fmt: skip
    assert run(["capture", "show", "0-1", str(store.root)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["0", "d" * 32, "unseen", "timeout"]
    assert run(["capture", "show", "0-0", str(store.root), "--json"]) == 0
    (call,) = json.loads(capsys.readouterr().out)
    assert (call["tokens_in"], "request" in call) == (3, False)
    assert run(["capture", "show", "c" * 32, str(store.root)]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["rollout_id"], whole["request"]) == ("0-0", CALL["request"])
    # Everything that the line says, also what readers of records do not need.
    assert whole["conversion_notes"] == CALL["conversion_notes"]
    assert set(CALL) <= set(whole)
    assert run(["capture", "show", "nothing", str(store.root)]) == 2


def test_a_folder_of_several_runs_says_which_of_them_each_rollout_belongs_to(
    store: CaptureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    other = CaptureStore(store.root.parents[1] / "second" / "model-calls")
    other.record("0-0", {**CALL, "model_call_id": "f" * 32})
    above = str(store.root.parents[1])
    assert run(["capture", "show", "0-0", above]) == 0
    shown = capsys.readouterr().out
    blocks = {lines[0]: lines[2] for block in shown.split("\n\n") if (lines := block.splitlines())}
    assert list(blocks) == [f"{store.root}:", f"{other.root}:"]
    assert "c" * 32 in blocks[f"{store.root}:"]
    assert "f" * 32 in blocks[f"{other.root}:"]
    assert run(["capture", "show", "0-0", above, "--json"]) == 0
    first, second = (json.loads(line)[0] for line in capsys.readouterr().out.splitlines())
    assert [first["directory"], second["directory"]] == [str(store.root), str(other.root)]
    assert run(["capture", "ls", above]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "DIRECTORY"
    assert [line.split()[-1] for line in lines] == [str(store.root)] * 2 + [str(other.root)]
    assert run(["capture", "show", "0-0", str(store.root)]) == 0
    assert str(store.root) not in capsys.readouterr().out, "one run needs no name"


def test_check_passes_what_is_whole(store: CaptureStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.seal("0-0")
    ledger = OpenCallLedger(store.root)
    ledger.begin("0-0", "e" * 32, 1.0)  # being served: no loss
    assert run(["capture", "check", str(store.root)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2 calls of 2 rollouts; 0 rollouts have problems" in captured.err
    assert run(["capture", "check", "--json", str(store.root)]) == 0
    assert json.loads(capsys.readouterr().out) == {"rollouts": 2, "calls": 2, "problems": []}


@pytest.mark.parametrize("damage", ["line", "dangling", "named", "unnamed", "sealed"])
def test_check_exits_with_1_for_each_kind_of_damage(
    store: CaptureStore, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    if damage == "line":
        with store.path_for("0-0").open("ab") as file:
            file.write(b'{"torn')
        expected = "1 damaged line"
    elif damage == "dangling":
        ledger = OpenCallLedger(store.root)
        ledger.begin("0-0", "e" * 32, 1.0)
        assert ledger._header is not None
        ledger._header.close()
        ledger._header = None
        os.close(ledger._fd)  # as the end of the process does
        expected = f"call {'e' * 32} is missing: its server process died"
    elif damage == "named":
        store.mark_incomplete("0-0", model_call_id="e" * 32, reason="the disk was full")
        expected = "is missing: the disk was full"
    elif damage == "unnamed":
        store.mark_incomplete("0-0")
        expected = "marked incomplete"
    else:
        store.seal("0-0")
        path = store.root / "0-0.capture.jsonl.zst"
        path.write_bytes(path.read_bytes()[:-4])
        expected = "not a whole zstd frame"
    assert run(["capture", "check", str(store.root)]) == 1
    assert expected in capsys.readouterr().out
    assert run(["capture", "check", "--json", str(store.root)]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["rollout_id"] == "0-0"


def test_seal_and_unseal_a_directory(store: CaptureStore, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in store.root.iterdir()}
    assert run(["capture", "seal", str(store.root)]) == 0
    assert "2 rollouts sealed" in capsys.readouterr().out
    assert sorted(path.name for path in store.root.iterdir()) == [f"{name}.zst" for name in sorted(before)]
    assert run(["capture", "seal", str(store.root)]) == 0
    assert "0 rollouts sealed" in capsys.readouterr().out
    assert run(["capture", "unseal", str(store.root)]) == 0
    assert {path.name: path.read_bytes() for path in store.root.iterdir()} == before


def test_seal_leaves_a_rollout_alone_whose_calls_still_run(
    store: CaptureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = OpenCallLedger(store.root)
    ledger.begin("0-0", "e" * 32, 1.0)
    assert run(["capture", "seal", str(store.root)]) == 0
    assert "still being served" in capsys.readouterr().err
    assert store.path_for("0-0").exists()
    assert not store.path_for("0-1").exists()


@pytest.mark.parametrize("command", ["ls", "check", "seal", "unseal"])
def test_a_folder_without_captures_is_a_mistake(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capture", command, str(tmp_path)]) == 2
    assert "no captures" in capsys.readouterr().err
    assert run(["capture", command, str(tmp_path / "none")]) == 2
