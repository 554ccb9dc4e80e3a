"""A state of a node with one bad value is refused. The good state that it was made from passes."""

import math

import pytest

from holdfast_daemon.validation.node_rules import KnownRanks, check_node
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.validation.bad_values import HUGE, RUN, SPEC, UNKNOWN, changed


def good_node() -> store.NodeState:
    node = store.NodeState(
        run=RUN,
        node="a",
        generation=3,
        fence=1_700_000_000_000,
        checkpoints=[4, 9],
        reported_unix_s=1.7e9,
        instance="i",
        replicas=store.NodeReplicas(
            address="10.0.0.1:7000",
            failure_domain="rack-1",
            held=[store.HeldReplicas(step=4, generation=3, ranks=[0, 1, 2])],
            wanted_step=9,
            replicated_step=4,
        ),
    )
    for number in (0, 1):
        groups = [common.GroupProgress(group="0", member_runs=[0, 1, 4], enqueued=7, completed=6, description="world")]
        channels = [common.ChannelProgress(group="0", peer=1, direction=common.DIRECTION_SEND, enqueued=2, completed=2)]
        on_device = common.GroupProgress(
            group="0", member_runs=[0, 1, 2], enqueued=9, started=8, completed=7, source=common.RECORDER_SOURCE_NCCL
        )
        progress = common.Progress(
            step=5, phase=common.PHASE_OPTIMIZER, groups=groups, channels=channels, device_groups=[on_device]
        )
        node.ranks.add(
            rank=number,
            pid=10 + number,
            life=store.LIFE_RUNNING,
            progress=progress,
            stalled_s=0.1,
            process_state="S",
            thread_state="R",
            moved="cpu",
            gpu=store.GpuState(
                gpu=number,
                uuid="GPU-0",
                fault=store.GpuFault(xid=79, meaning="it is lost", fatal=True),
                utilization_sum=5.0,
                utilization_samples=5,
            ),
            blocked_on=common.BlockedOn(activity=common.ACTIVITY_PIPE, path="/data/fifo"),
            snapshots=[3, 4],
            coordinates={"dp": number},
            phase_s={common.PHASE_DATA: 0.5},
            own_time_source=common.OWN_TIME_SOURCE_NONE,
            own_time_reason="it sends messages",
            recorders=[common.Recorder(source=common.RECORDER_SOURCE_NCCL, backend="nccl")],
            pending=[common.PendingCall(rank=number, group="0", seq=7, op="gloo:all_reduce")],
        )
    dead = store.RankExit(signal=9, step=5, phase=common.PHASE_OPTIMIZER, exited_unix_s=1.7e9, last_words="E: x")
    node.ranks[1].exit.CopyFrom(dead)
    node.ranks[1].life = store.LIFE_EXITED
    return node


BAD_NODES = [
    ("node", "b"),
    ("run", "other"),
    ("generation", HUGE),
    ("fence", HUGE),
    ("failed_generation", HUGE),
    ("checkpoint_generation", HUGE),
    ("checkpoints", [4, -2]),
    ("history", 2**32 - 1),
    ("reported_unix_s", math.nan),
    ("reported_unix_s", 1e12),
    ("leave_in_s", -1.0),
    ("instance", "x" * 300),
    ("failure", "x" * (2**20 + 1)),
    ("world_size", 2**30),
    ("replicas.address", "a\nb"),
    ("replicas.failure_domain", "x" * 300),
    ("replicas.held", [store.HeldReplicas()] * 65),
    ("replicas.held.0.step", -2),
    ("replicas.held.0.generation", HUGE),
    ("replicas.held.0.ranks", [0] * 8193),
    ("replicas.wanted_step", -2),
    ("replicas.replicated_step", HUGE),
    ("ranks.1.rank", 0),
    ("ranks.1.rank", 4),
    ("ranks.0.life", UNKNOWN),
    ("ranks.0.stalled_s", math.nan),
    ("ranks.0.stalled_s", math.inf),
    ("ranks.0.stalled_s", -0.5),
    ("ranks.0.silent_s", -math.inf),
    ("ranks.0.busy_s", math.nan),
    ("ranks.0.still_s", math.nan),
    ("ranks.0.own_wait_s", math.nan),
    ("ranks.0.device_own_s", -1.0),
    ("ranks.0.device_steps", 2**63),
    ("ranks.0.own_time_source", UNKNOWN),
    ("ranks.0.own_time_reason", "x" * 256),
    ("ranks.0.own_time_reason", "a\nb"),
    ("ranks.0.first_step_ended_unix_s", -1.0),
    ("ranks.0.steps_done", -1),
    ("ranks.0.planned_steps", 2**63),
    ("ranks.0.process_state", "SS"),
    ("ranks.0.thread_state", "RR"),
    ("ranks.0.moved", "soul"),
    ("ranks.0.lost_worker.code", 256),
    ("ranks.0.blocked_on.path", "a\nb"),
    ("ranks.0.blocked_on.activity", UNKNOWN),
    ("ranks.0.device", "x" * 300),
    ("ranks.0.gpu.uuid", "x" * 300),
    ("ranks.0.gpu.utilization_sum", -0.5),
    ("ranks.0.gpu.utilization_sum", 5.5),
    ("ranks.0.gpu.utilization_sum", math.nan),
    ("ranks.0.gpu.utilization_samples", 0),
    ("ranks.0.gpu.utilization_samples", HUGE),
    ("ranks.0.gpu.throttles", ["x"] * 17),
    ("ranks.0.gpu.throttles", ["x" * 300]),
    ("ranks.0.gpu.fault.meaning", "a\nb"),
    ("ranks.0.gpu.fault.unix_s", math.nan),
    ("ranks.1.exit.gpu_fault.meaning", "x" * 300),
    ("ranks.0.coordinates", {f"axis{number}": 0 for number in range(65)}),
    ("ranks.0.coordinates", {"x" * 300: 0}),
    ("ranks.0.snapshots", [-2]),
    ("ranks.0.snapshots", [HUGE]),
    ("ranks.0.phase_s", {UNKNOWN: 1.0}),
    ("ranks.0.phase_s", {common.PHASE_DATA: math.nan}),
    ("ranks.0.progress.step", -2),
    ("ranks.0.progress.step", HUGE),
    ("ranks.0.progress.phase", UNKNOWN),
    ("ranks.0.progress.groups.0.member_runs", [0, 4, 2]),
    ("ranks.0.progress.groups.0.member_runs", [1, 1, 1, 0, 1, 1]),
    ("ranks.0.progress.groups.0.member_runs", [0, 1]),
    ("ranks.0.progress.groups.0.group", "x" * 300),
    ("ranks.0.progress.groups.0.description", "x" * 3000),
    ("ranks.0.progress.groups.0.enqueued", HUGE),
    ("ranks.0.progress.groups.0.completed", HUGE),
    ("ranks.0.progress.groups.0.source", UNKNOWN),
    ("ranks.0.progress.device_groups.0.started", HUGE),
    ("ranks.0.progress.device_groups.0.source", UNKNOWN),
    ("ranks.0.recorders.0.source", UNKNOWN),
    ("ranks.0.recorders.0.backend", "x" * 300),
    ("ranks.0.progress.channels.0.direction", UNKNOWN),
    ("ranks.0.progress.channels.0.peer", 4),
    ("ranks.0.progress.channels.0.enqueued", HUGE),
    ("ranks.0.pending.0.rank", 4),
    ("ranks.0.pending.0.seq", HUGE),
    ("ranks.0.pending.0.op", "x" * 300),
    ("ranks.1.exit.step", -2),
    ("ranks.1.exit.phase", UNKNOWN),
    ("ranks.1.exit.signal", -3),
    ("ranks.1.exit.exited_unix_s", math.inf),
]


@pytest.mark.parametrize("known", [False, True], ids=["new ranks", "known ranks"])
@pytest.mark.parametrize(("path", "value"), BAD_NODES, ids=lambda value: repr(value)[:40])
def test_a_node_with_one_bad_value_is_refused(path: str, value: object, known: bool) -> None:
    ranks = KnownRanks()
    if known:
        check_node(good_node(), name="a", run=RUN, spec=SPEC, known=ranks)
    with pytest.raises(RefusedError) as caught:
        check_node(changed(good_node(), path, value), name="a", run=RUN, spec=SPEC, known=ranks)
    assert "\n" not in str(caught.value)
    check_node(good_node(), name="a", run=RUN, spec=SPEC, known=ranks)


def test_a_good_node_says_which_ranks_are_alive_there() -> None:
    for spec in (SPEC, None):
        assert check_node(good_node(), name="a", run=RUN, spec=spec, known=KnownRanks()) == {(3, 0)}


def test_a_state_that_was_checked_is_as_it_was() -> None:
    ranks, node = KnownRanks(), good_node()
    for stalled_s in (1.0, 2.0):
        node.ranks[0].stalled_s = stalled_s
        before = store.NodeState.FromString(node.SerializeToString())
        check_node(node, name="a", run=RUN, spec=SPEC, known=ranks)
        assert node == before
