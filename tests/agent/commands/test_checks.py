from typing import Any

import pytest

from holdfast_agent.commands.checks import Known, refusal
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault

NOW_UNIX_S = 1.8e9
FENCE = int(NOW_UNIX_S * 1000)
SPEC = store.RunSpec(run="run", nodes=2, ranks_per_node=4, command=["true"], instance="i")


def command(**changes: Any) -> store.NodeCommand:
    fields: dict[str, Any] = {"id": "a", "fence": FENCE, "generation": 2, "instance": "i"}
    return store.NodeCommand(**{**fields, **changes})


def reason(given: store.NodeCommand, spec: store.RunSpec = SPEC, **known: Any) -> str:
    fields: dict[str, Any] = {"fence": 0, "number": 0, "generation": 0, "observes": False}
    return refusal(given, spec, Known(**{**fields, **known}), number=7, now_unix_s=NOW_UNIX_S)


def start(**changes: Any) -> store.StartGeneration:
    fields: dict[str, Any] = {
        "first_rank": 4, "ranks": 4, "world_size": 8, "rendezvous_node": "a", "source": store.SOURCE_MEMORY, "step": 9,
    }  # fmt: skip
    return store.StartGeneration(**{**fields, **changes})


def evidence(**names: Any) -> dict[str, store.GatherEvidence]:
    return {"gather_evidence": store.GatherEvidence(**names)}


@pytest.mark.parametrize(
    "kind",
    [
        {"start": start()},
        {"start": start(source=store.SOURCE_SEED, step=-1)},
        {"stop": store.StopGeneration()},
        evidence(incident="run-0001-0002"),
        evidence(suspicion="0001-0002", ras_pids=[70, 71]),
        {"take_checkpoint": store.TakeCheckpoint(step=12)},
        {"replicate": store.Replicate(step=12, partner="b", address="b:7000", kept_step=6)},
        {"keep_checkpoint": store.KeepCheckpoint(step=0)},
        {"persist_snapshot": store.PersistSnapshot(step=3)},
        {"persist_replicas": store.PersistReplicas(step=3, generation=1, world_size=8, ranks=[0, 7])},
        {"leave": store.LeaveAt(step=-1)},
        {"finish": store.FinishRun(succeeded=True)},
        {"inject_fault": Fault(kind="kill", rank=1, step=-1)},
        {"take_stacks": store.TakeStacks(request="a", ranks=[1])},
        {"take_profile": store.TakeProfile(request="a", rank=1, steps=3, patience_s=60.0)},
        {"spike_found": session.SpikeFound(tier="divergence", step=12)},
    ],
)
def test_what_a_leader_sends_is_carried_out(kind: dict[str, Any]) -> None:
    assert reason(command(**kind)) == ""


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ({}, "unknown"),
        ({"take_stacks": store.TakeStacks()}, "request is missing"),
        ({"take_stacks": store.TakeStacks(request="../x")}, "an id has"),
        ({"take_profile": store.TakeProfile(request="a/b", steps=1, patience_s=1.0)}, "an id has"),
        ({"take_profile": store.TakeProfile(request="a", steps=101, patience_s=1.0)}, "steps is 101"),
        ({"take_profile": store.TakeProfile(request="a", steps=1, patience_s=float("nan"))}, "patience"),
        ({"start": start(ranks=0)}, "0 ranks"),
        ({"start": start(ranks=10**9, world_size=2 * 10**9)}, "world_size is 2000000000"),
        ({"start": start(first_rank=8)}, "world of 8"),
        ({"start": start(first_rank=2**32 - 1)}, "world of 8"),
        ({"start": start(world_size=4000)}, "larger than the run"),
        ({"start": start(source=store.SOURCE_UNSPECIFIED)}, "source is missing"),
        ({"start": start(source=77)}, "source is 77"),
        ({"start": start(step=-2)}, "step is -2"),
        ({"start": start(), "generation": 0}, "generation 0"),
        ({"start": start(), "generation": 2**63}, "generation"),
        ({"stop": store.StopGeneration(), "id": ""}, "id"),
        ({"stop": store.StopGeneration(), "id": "x" * 1000}, "id"),
        ({"stop": store.StopGeneration(), "fence": 2**64 - 1}, "fence"),
        (evidence(), "neither"),
        (evidence(incident="../../etc"), "an id has"),
        (evidence(incident=".."), "an id has"),
        (evidence(suspicion="a\0b"), "an id has"),
        (evidence(incident="x" * 4000), "an id has"),
        ({"take_checkpoint": store.TakeCheckpoint(step=-2)}, "step is -2"),
        ({"replicate": store.Replicate(step=-2)}, "step is -2"),
        ({"persist_snapshot": store.PersistSnapshot(step=2**62)}, "step"),
        ({"persist_replicas": store.PersistReplicas(step=-2, world_size=8)}, "step is -2"),
        ({"persist_replicas": store.PersistReplicas(world_size=9, ranks=[0])}, "larger than the run"),
        ({"persist_replicas": store.PersistReplicas(world_size=4, ranks=[1, 4])}, "rank 4 in a world of 4"),
        ({"leave": store.LeaveAt(step=-(2**63))}, "step"),
        ({"finish": store.FinishRun(patience_s=float("nan"))}, "patience"),
        ({"finish": store.FinishRun(patience_s=-1.0)}, "patience"),
        ({"inject_fault": Fault(kind="pause", duration_s=float("inf"))}, "duration"),
        ({"inject_fault": Fault(kind="kill", step=-3)}, "step is -3"),
        ({"spike_found": session.SpikeFound(tier="spike", step=-2)}, "step is -2"),
        ({"spike_found": session.SpikeFound(tier="x" * 4000)}, "tier"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(kind: dict[str, Any], named: str) -> None:
    assert named in reason(command(**kind))


def test_a_run_that_another_launcher_starts_has_no_number_of_ranks_to_compare_with() -> None:
    given = command(start=start(ranks=64, first_rank=0, world_size=512))
    assert reason(given, store.RunSpec(run="run", instance="i")) == ""


@pytest.mark.parametrize(
    ("known", "named"),
    [
        ({"fence": FENCE + 1}, "a newer one has"),
        ({"generation": 3}, "this node is at 3"),
        ({"observes": True}, "another launcher has started its ranks"),
    ],
)
def test_a_command_that_does_not_fit_the_node_is_refused(known: dict[str, Any], named: str) -> None:
    assert named in reason(command(stop=store.StopGeneration()), **known)
    assert reason(command(stop=store.StopGeneration()), fence=FENCE, generation=2) == ""


def test_the_end_of_a_run_is_never_too_old_for_a_node_and_evidence_and_spikes_harm_no_foreign_rank() -> None:
    assert reason(command(finish=store.FinishRun()), generation=3, observes=True) == ""
    assert reason(command(**evidence(incident="a")), observes=True) == ""
    assert reason(command(spike_found=session.SpikeFound(tier="spike")), observes=True) == ""


def test_replica_snapshots_are_made_of_ranks_of_another_launcher_only_if_they_are_restored() -> None:
    given = command(replicate=store.Replicate(step=12, partner="b", address="b:7000"))
    observed = store.RunSpec(run="run", instance="i", nodes=2)
    assert "another launcher has started its ranks" in reason(given, observed, observes=True)
    observed.restores = True
    assert reason(given, observed, observes=True) == ""


def test_replica_snapshots_of_ranks_that_are_only_watched_never_become_a_checkpoint() -> None:
    given = command(persist_replicas=store.PersistReplicas(step=12, world_size=8, ranks=[0]))
    watched = store.RunSpec(run="run", instance="i", nodes=2)
    assert "another launcher has started its ranks" in reason(given, watched, observes=True)


def test_a_command_for_another_instance_of_the_run_is_refused() -> None:
    assert "'other'" in reason(command(stop=store.StopGeneration(), instance="other"))
    assert "no instance" in reason(command(stop=store.StopGeneration(), instance=""))
