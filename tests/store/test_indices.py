"""Compact sets and indices of rollouts behave as the plain ones that they replace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.records.rows import RolloutKey
from nemo_gym.store import Inventory, Place, RolloutKeySet, RowIndex

INDICES = st.one_of(st.integers(0, 20), st.integers(0, 2**63 - 1))
KEYS = st.builds(RolloutKey, INDICES, INDICES)


@given(st.lists(KEYS), st.lists(KEYS))
def test_a_key_set_is_a_set(added, removed):
    compact, plain = RolloutKeySet(added), set(added)
    for key in removed[: len(removed) // 2] + added[::2]:
        compact.discard(key)
        plain.discard(key)
    assert len(compact) == len(plain)
    assert set(compact) == plain
    assert all((key in compact) == (key in plain) for key in added + removed)
    assert "0-0" not in compact


@given(st.dictionaries(KEYS, st.sampled_from(["a", "b", "c"])))
def test_an_inventory_knows_where_each_rollout_goes(labels):
    inventory = Inventory()
    for key, label in labels.items():
        inventory.add(key, label)
    assert set(inventory) == set(labels)
    assert len(inventory) == len(labels)
    assert all(inventory.label_of(key) == label for key, label in labels.items())
    assert inventory.label_of(RolloutKey(2**40 + 1, 2**41 + 3)) is None
    assert inventory.tasks() == len({key.task for key in labels})
    assert sum(inventory.counts().values()) == len(labels)


ODD = st.one_of(st.none(), st.text(max_size=3), st.integers(2**63, 2**70))


@given(st.lists(st.tuples(st.one_of(st.integers(-9, 9), ODD), st.one_of(st.integers(-9, 9), ODD))))
def test_a_row_index_sorts_by_indices_and_keeps_the_order_of_equals(pairs):
    index = RowIndex()
    for number, (task, rollout) in enumerate(pairs):
        index.add(Place(task, rollout, 0, number, 1))
    found = list(index)
    assert len(index) == len(found) == len(pairs)
    assert sorted(place.offset for place in found) == list(range(len(pairs)))
    usual = [place for place in found if all(isinstance(n, int) and abs(n) < 10 for n in place[:2])]
    assert found[: len(usual)] == usual == sorted(usual, key=lambda place: (place.task, place.rollout, place.offset))
