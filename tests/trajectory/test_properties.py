"""Rollouts at random whose truth is known: the join never guesses, and forgets nothing that was said.

The truth is which invocation made which call. What the join gets to see is a part of it: some references, some session
headers, some response ids that repeat, some references that are given twice or contradict their call, subagents,
retries with the same request, and compactions that name calls of anybody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.records.evidence import AgentObservationBundle, TrajectoryRecord, read
from nemo_gym.records.identity import TrajectoryIdentity
from nemo_gym.records.matching import CallIndex
from nemo_gym.trajectory import build_perf, build_perf_detail, join_observations, owned_calls, project_trajectory

IDENTITY = TrajectoryIdentity("t", "0-0", False)


@dataclass
class Rollout:
    """What is captured and observed, and what is true."""

    calls: list = field(default_factory=list)
    bundle: dict = field(default_factory=dict)
    owners: dict = field(default_factory=dict)
    """call id -> the invocation that made the call, None when no agent did."""
    named: dict = field(default_factory=dict)
    """call id -> whether a reference or a session header names exactly this call."""


def rollout(rng: random.Random) -> Rollout:
    made = Rollout()
    invocations = [f"inv-{n}" for n in range(rng.randint(1, 4))]
    records = {name: {"kind": "agent_invocation", "invocation_id": name, "model_calls": []} for name in invocations}
    for at, name in enumerate(invocations[1:]):
        records[name]["parent_invocation_id"] = rng.choice([None, "unseen", *invocations[: at + 1]])
    pairs: dict = {}
    for number in range(rng.randint(0, 12)):
        call_id = f"c{number}"
        server = {"type": "responses_api_models", "name": rng.choice(["policy", "judge"])}
        response_id = rng.choice([None, f"r{number}", f"r{number}", f"r{rng.randint(0, 3)}"])
        owner = rng.choice([*invocations, None])
        call = {
            "model_call_id": call_id,
            "model_ref": server,
            "response_id": response_id,
            "started_at": rng.random(),
            "tokens_in": rng.choice([None, rng.randint(0, 99)]),
            "tokens_out": rng.choice([None, rng.randint(0, 99)]),
            "status_code": rng.choice([200, 429]),
            "request": {"input": rng.choice("ab")},
        }
        made.calls.append(call)
        made.owners[call_id] = owner
        made.named[call_id] = False
        pairs.setdefault((server["name"], response_id), []).append(call_id)
        if owner is None:
            continue
        form = rng.choice(["id", "full", "server", "pair", "session", "silence", "twice", "contradiction"])
        ref = {
            "id": {"model_call_id": call_id},
            "full": {"model_call_id": call_id, "model_ref": server, "response_id": response_id},
            "server": {"model_call_id": call_id, "model_ref": server},
            "pair": {"model_ref": server, "response_id": response_id},
            "twice": {"model_call_id": call_id},
            "contradiction": {"model_call_id": call_id, "response_id": "of another call"},
        }.get(form)
        if form == "pair" and response_id is None:
            continue
        if ref is not None:
            records[owner]["model_calls"] += [ref] * (2 if form == "twice" else 1)
        if form == "session":
            call["client_session_id"] = owner
        made.named[call_id] = form in ("id", "full", "server", "session", "pair", "twice")
        call["_form"] = form
    for call in made.calls:
        # a pair that two calls share names neither; a session is silent when such a pair already denotes its call
        shared = len(pairs[call["model_ref"]["name"], call["response_id"]]) > 1
        if shared and call.pop("_form", None) in ("pair", "session"):
            made.named[call["model_call_id"]] = None
        call.pop("_form", None)
    tools = [
        {"kind": "tool_call", "invocation_id": rng.choice([*invocations, "gone"]), "tool_call_id": f"t{n}"}
        for n in range(rng.randint(0, 4))
    ]
    everything = [
        *records.values(),
        *tools,
        *(compaction(rng, invocations, made.calls) for _ in range(rng.randint(0, 2))),
    ]
    rng.shuffle(everything)
    made.bundle = {"source": "a", "records": everything, "gaps": []}
    for index, call in enumerate(made.calls):
        call["call_index"] = index
    return made


def compaction(rng: random.Random, invocations: list[str], calls: list[dict]) -> dict:
    names = [call["model_call_id"] for call in calls] + ["nobody's"]
    refs = [{"model_call_id": rng.choice(names)} for _ in range(3)]
    return {
        "kind": "context_compaction",
        "invocation_id": rng.choice(invocations),
        "before_model_call": rng.choice([None, refs[0]]),
        "model_calls": refs[1 : rng.randint(1, 3)],
        "after_model_call": rng.choice([None, refs[-1]]),
    }


rollouts = st.integers(0, 2**48).map(lambda seed: rollout(random.Random(seed)))
many = settings(max_examples=150, deadline=None)


def owners_of(joined, calls):
    """Return call id -> owner, as the canonical references of a joined bundle say."""
    index = CallIndex(calls)
    found = {}
    for record in joined["records"]:
        for ref in record["model_calls"] if record["kind"] == "agent_invocation" else ():
            matches = index.match(ref)
            if len(matches) == 1:
                found.setdefault(calls[matches[0]]["model_call_id"], record["invocation_id"])
    return found


def trajectory_of(made, calls=None):
    calls = made.calls if calls is None else calls
    bundle = join_observations(made.bundle, calls)
    capture = {"rollout_id": "0-0", "metrics": {}, "calls": calls}
    return project_trajectory(identity=IDENTITY, capture=capture, observations=bundle)


@many
@given(rollouts)
def test_no_call_gets_an_owner_that_did_not_make_it_or_that_nobody_named(made):
    """A6, A7."""
    for call_id, owner in owners_of(join_observations(made.bundle, made.calls), made.calls).items():
        assert made.owners[call_id] == owner
        assert made.named[call_id] is not False


@many
@given(rollouts)
def test_every_call_that_is_named_exactly_gets_its_owner_and_every_other_one_a_gap(made):
    joined = join_observations(made.bundle, made.calls)
    found = owners_of(joined, made.calls)
    unowned = {gap["detail"].split(":")[1] for gap in joined["gaps"] if gap["invocation_id"] is None}
    for call in made.calls:
        call_id = call["model_call_id"]
        if made.named[call_id]:
            assert found[call_id] == made.owners[call_id]
        assert (call_id in found) != (call_id in unowned)


@many
@given(rollouts)
def test_joining_again_changes_nothing(made):
    joined = join_observations(made.bundle, made.calls)
    assert join_observations(joined, made.calls) == joined


@many
@given(rollouts, st.randoms(use_true_random=False))
def test_the_order_of_records_and_of_calls_means_nothing(made, rng):
    """A7."""
    before = owners_of(join_observations(made.bundle, made.calls), made.calls)
    records, calls = list(made.bundle["records"]), list(made.calls)
    rng.shuffle(records)
    rng.shuffle(calls)
    joined = join_observations({**made.bundle, "records": records}, calls)
    assert owners_of(joined, calls) == before
    assert build_perf(trajectory_of(made, calls)) == build_perf(trajectory_of(made))


@many
@given(rollouts, st.randoms(use_true_random=False))
def test_times_mean_nothing(made, rng):
    """A7."""
    before = join_observations(made.bundle, made.calls)
    shaken = [{**call, "started_at": rng.random(), "completed_at": None} for call in made.calls]
    assert join_observations(made.bundle, shaken) == before


@many
@given(rollouts)
def test_more_identifiers_take_no_owner_away_and_guess_none(made):
    """Each reference by pair or by id, written with everything that is true of its call, owns what it owned."""
    before = owners_of(join_observations(made.bundle, made.calls), made.calls)
    index = CallIndex(made.calls)
    fuller = []
    for record in made.bundle["records"]:
        refs = []
        for ref in record.get("model_calls", ()):
            matches = index.match(ref)
            call = made.calls[matches[0]] if len(matches) == 1 else None
            known = {key: call[key] for key in ("model_call_id", "model_ref", "response_id")} if call else {}
            refs.append({**ref, **known})
        fuller.append({**record, "model_calls": refs} if "model_calls" in record else record)
    assert owners_of(join_observations({**made.bundle, "records": fuller}, made.calls), made.calls) == before


@many
@given(rollouts)
def test_perf_never_claims_more_than_was_captured(made):
    """A27."""
    trajectory = trajectory_of(made)
    perf = build_perf(trajectory)
    assert 0 <= perf["token_observability_coverage"] <= 1
    for key, source in (("prompt_tokens", "tokens_in"), ("completion_tokens", "tokens_out")):
        known = [call[source] for call in made.calls if call[source] is not None]
        assert perf.get(key, 0) <= sum(known)
        owned = [made.calls[at][source] for at in owned_calls(trajectory)]
        assert (key in perf) == any(count is not None for count in owned)
    assert perf["num_tool_calls"] <= sum(record["kind"] == "tool_call" for record in made.bundle["records"])


@many
@given(rollouts)
def test_the_detail_counts_no_more_calls_tokens_and_tools_than_perf_does(made):
    trajectory = trajectory_of(made)
    perf, detail = build_perf(trajectory), build_perf_detail(trajectory)
    assert sum(tool["count"] for tool in detail["tools"]) == perf["num_tool_calls"]
    assert detail["retries"]["count"] + detail["failed_calls"]["count"] <= 2 * len(owned_calls(trajectory))
    for part in (detail["failed_calls"], detail["retries"]):
        for key in ("prompt_tokens", "completion_tokens"):
            assert part.get(key, 0) <= perf.get(key, 0)


@many
@given(rollouts)
def test_perf_owns_exactly_what_the_join_owns(made):
    joined = join_observations(made.bundle, made.calls)
    trajectory = trajectory_of(made)
    owned = {made.calls[at]["model_call_id"]: name for at, name in owned_calls(trajectory).items()}
    assert owned == owners_of(joined, made.calls)


@many
@given(rollouts, st.randoms(use_true_random=False))
def test_repeated_call_ids_never_cost_the_trajectory_nor_make_an_owner(made, rng):
    """D6."""
    for call in made.calls:
        if rng.random() < 0.3:
            call["model_call_id"] = rng.choice(made.calls)["model_call_id"]
    joined = join_observations(made.bundle, made.calls)
    assert join_observations(joined, made.calls) == joined
    trajectory = trajectory_of(made)
    assert isinstance(trajectory, TrajectoryRecord)
    assert len(trajectory.model_calls) == len(made.calls)
    unowned = sum(
        gap.code == "model_call_ownership_unavailable" and gap.invocation_id is None for gap in trajectory.gaps
    )
    assert len(owned_calls(trajectory)) <= len(made.calls) - unowned


@many
@given(rollouts)
def test_a_joined_bundle_is_a_bundle_and_keeps_every_record(made):
    joined = join_observations(made.bundle, made.calls)
    read(AgentObservationBundle, joined)
    assert [record["kind"] for record in joined["records"]] == [record["kind"] for record in made.bundle["records"]]
