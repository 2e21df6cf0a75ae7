from __future__ import annotations

import gzip
import os
import random
import signal
import stat
import threading

import pytest
import zstandard

from nemo_gym.capture import CaptureStore, read_model_call_records, seal_rollout
from nemo_gym.errors import DataError

WORDS = ["".join(random.Random(seed).choice("etaoinshrdlucmfwyp") for _ in range(2 + seed % 9)) for seed in range(4000)]


def prose(rng: random.Random, words: int) -> str:
    """Text whose words are as unevenly common as those of a language."""
    picked = (WORDS[min(int(rng.paretovariate(0.7)), len(WORDS)) - 1] for _ in range(words))
    return " ".join(f"{word}{rng.randrange(1000)}" if rng.random() < 0.05 else word for word in picked)


def fill(store: CaptureStore, turns: int) -> list[dict[str, object]]:
    """A rollout as it grows: every call carries the whole conversation, tool results of 2 to 20 KB among it."""
    rng = random.Random(turns)
    history: list[dict[str, object]] = [{"role": "system", "content": prose(rng, 800)}]
    for turn in range(turns):
        history.append({"role": "user", "content": prose(rng, rng.randrange(300, 3000))})
        answer = {"role": "assistant", "content": prose(rng, rng.randrange(20, 200))}
        store.record(
            "0-0",
            {
                "model_call_id": str(turn),
                "started_at": 1.7e9 + rng.random(),
                "request": {"model": "m", "messages": history},
                "response": {"id": f"{rng.getrandbits(96):x}", "choices": [{"index": 0, "message": answer}]},
            },
        )
        history.append(answer)
    return store.read("0-0")


def test_fifty_turns_of_a_growing_history_are_forty_times_smaller_and_read_as_before(store: CaptureStore) -> None:
    lines = fill(store, 50)
    plain = store.path_for("0-0").read_bytes()
    assert store.seal("0-0")
    (sealed,) = store.root.iterdir()
    assert sealed.name == "0-0.capture.jsonl.zst"
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o600
    assert sealed.stat().st_size * 40 <= len(plain)
    assert len(gzip.compress(plain, 6)) * 10 > len(plain), "the text itself is not what makes it small"
    assert store.read("0-0") == lines
    assert len(read_model_call_records(store, "0-0")) == 50
    assert not store.seal("0-0")
    assert store.unseal("0-0")
    assert store.path_for("0-0").read_bytes() == plain
    assert [path.name for path in store.root.iterdir()] == ["0-0.capture.jsonl"]
    assert not store.unseal("0-0")


def test_it_is_one_frame_with_a_long_window(store: CaptureStore) -> None:
    fill(store, 5)
    size = store.path_for("0-0").stat().st_size
    store.seal("0-0")
    parameters = zstandard.get_frame_parameters((store.root / "0-0.capture.jsonl.zst").read_bytes())
    assert parameters.content_size == size
    assert parameters.window_size >= size


@pytest.mark.parametrize("tail", [b"", b'{"torn', b"\n\n", b"\xff\xfe\n"])
def test_unsealing_gives_every_byte_back_damage_included(store: CaptureStore, tail: bytes) -> None:
    fill(store, 2)
    with store.path_for("0-0").open("ab") as file:
        file.write(tail)
    plain = store.path_for("0-0").read_bytes()
    before = store.read_available("0-0")
    store.seal("0-0")
    assert store.read_available("0-0") == before
    assert store.unseal("0-0")
    assert store.path_for("0-0").read_bytes() == plain


def test_a_torn_end_that_was_sealed_costs_no_later_line(store: CaptureStore) -> None:
    fill(store, 2)
    with store.path_for("0-0").open("ab") as file:
        file.write(b'{"torn')
    store.seal("0-0")
    store.record("0-0", {"model_call_id": "late"})
    for _ in range(2):
        lines, damaged = store.read_available("0-0")
        assert ([line["model_call_id"] for _, line in lines], damaged) == (["0", "1", "late"], 1)
        store.unseal("0-0")


def test_readers_and_writers_are_undisturbed_while_a_capture_is_sealed_and_unsealed(store: CaptureStore) -> None:
    fill(store, 2)
    done = threading.Event()

    def turn_over() -> None:
        while not done.is_set():
            store.seal("0-0")
            store.unseal("0-0")

    worker = threading.Thread(target=turn_over)
    worker.start()
    try:
        for number in range(2, 102):
            store.record("0-0", {"model_call_id": str(number)})
            assert [line["model_call_id"] for line in store.read("0-0")] == [str(seen) for seen in range(number + 1)]
    finally:
        done.set()
        worker.join(30)


def test_sealing_that_fails_leaves_the_capture_and_says_so(
    store: CaptureStore, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store, 1)
    (store.root / "0-0.capture.jsonl.zst").mkdir()
    assert not seal_rollout({"_ng_task_index": 0, "_ng_rollout_index": 0}, [store.root])
    assert "could not be sealed" in caplog.text
    assert store.path_for("0-0").exists()


def test_a_rollout_is_sealed_by_its_row(store: CaptureStore) -> None:
    store.record("0-0-a1", {"model_call_id": "a"})
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_attempt_index": 1}
    assert seal_rollout(row, [store.root])
    assert not seal_rollout({}, [store.root])
    assert [path.name for path in store.root.iterdir()] == ["0-0-a1.capture.jsonl.zst"]


def test_lines_after_sealing_come_behind_and_can_be_sealed_too(store: CaptureStore) -> None:
    fill(store, 2)
    store.seal("0-0")
    store.record("0-0", {"model_call_id": "late"})
    assert [line["model_call_id"] for line in store.read("0-0")] == ["0", "1", "late"]
    assert store.seal("0-0")
    assert [line["model_call_id"] for line in store.read("0-0")] == ["0", "1", "late"]


def test_a_crash_between_sealing_and_removing_doubles_nothing(store: CaptureStore) -> None:
    fill(store, 3)
    data = store.path_for("0-0").read_bytes()
    store.seal("0-0")
    store.path_for("0-0").write_bytes(data)
    assert len(store.read("0-0")) == 3


def test_a_crash_between_sealing_again_and_removing_doubles_nothing(store: CaptureStore) -> None:
    fill(store, 3)
    store.seal("0-0")
    store.record("0-0", {"model_call_id": "late"})
    data = store.path_for("0-0").read_bytes()
    store.seal("0-0")
    store.path_for("0-0").write_bytes(data)
    assert [line["model_call_id"] for line in store.read("0-0")] == ["0", "1", "2", "late"]


def test_what_a_kill_left_half_sealed_is_overwritten(store: CaptureStore) -> None:
    """A process that is killed while it seals, or unseals, leaves the beginning of a file; no other name gathers."""

    def killed_while(work: str) -> None:
        pid = os.fork()
        if pid == 0:
            os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            getattr(store, work)("0-0")
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    lines = fill(store, 3)
    for work in ("seal", "unseal", "seal"):
        killed_while(work)
        assert len(list(store.root.iterdir())) >= 2, "something half-written is there"
        assert store.read("0-0") == lines
        assert store.rollout_ids() == ["0-0"]
        assert getattr(store, work)("0-0")
        assert len(list(store.root.iterdir())) == 1
        assert store.read("0-0") == lines


def fill_with_unique_text(store: CaptureStore, turns: int) -> int:
    """A conversation whose every turn says something new; return how many bytes of text that is in all."""
    rng = random.Random(13)
    history: list[dict[str, str]] = []
    unique = 0
    for turn in range(turns):
        said = [{"role": role, "content": f"{rng.getrandbits(1600):0400x}"} for role in ("user", "assistant")]
        history.append(said[0])
        request = {"model": "m", "messages": history}
        store.record("0-0", {"model_call_id": str(turn), "request": request, "response": {"message": said[1]}})
        history.append(said[1])
        unique += sum(len(each["content"]) for each in said)
    return unique


def test_a_conversation_of_200_turns_takes_at_most_three_times_its_unique_text(store: CaptureStore) -> None:
    unique = fill_with_unique_text(store, 200)
    assert store.path_for("0-0").stat().st_size > 100 * unique, "each turn repeats all before it"
    store.seal("0-0")
    (sealed,) = store.root.iterdir()
    assert sealed.stat().st_size <= 3 * unique
    assert len(store.read("0-0")) == 200


def test_a_damaged_sealed_file_is_named(store: CaptureStore) -> None:
    fill(store, 1)
    store.seal("0-0")
    (sealed,) = store.root.iterdir()
    sealed.write_bytes(sealed.read_bytes()[:-5])
    with pytest.raises(DataError, match="zst"):
        store.read("0-0")


def test_deleting_takes_the_sealed_file_too(store: CaptureStore) -> None:
    fill(store, 1)
    store.seal("0-0")
    store.delete("0-0")
    assert list(store.root.iterdir()) == []
    assert store.read("0-0") == []
