"""Ranks that stand still on a GPU with a fatal error."""

from holdfast_core.detectors.hangs.gpu_fault import GpuFault
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World
from tests.support.views import LATE_S, NOW, Ranks, hung_in_one_group

OFF_THE_BUS = store.GpuFault(
    gpu=3, uuid="GPU-3", xid=79, meaning="the GPU has fallen off the bus", unix_s=NOW - LATE_S, fatal=True
)


def break_gpu(rank: store.RankState, fault: store.GpuFault = OFF_THE_BUS) -> None:
    rank.gpu.gpu, rank.gpu.uuid = fault.gpu, fault.uuid
    rank.gpu.fault.CopyFrom(fault)


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(GpuFault())


def test_in_a_call_that_all_have_entered_the_rank_with_the_broken_gpu_is_named() -> None:
    ranks = Ranks().group("0", dict.fromkeys(range(4), 11), 10)
    break_gpu(ranks[2])
    found = ranks.found(GpuFault())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_HUNG_COLLECTIVE, [2])
    assert found.message == (
        "rank 2 makes no progress in forward_backward of step 50,"
        " after Xid 79 on its GPU 3 (the GPU has fallen off the bus)"
    )


def test_those_that_wait_for_it_are_shown() -> None:
    ranks = hung_in_one_group(1)
    break_gpu(ranks[1])
    assert "ranks 0, 2, 3 wait for it in collective 11" in ranks.found(GpuFault()).message


def test_of_several_broken_gpus_the_first_comes_first() -> None:
    ranks = hung_in_one_group(1)
    later = store.GpuFault(gpu=0, uuid="GPU-0", xid=74, meaning="an NVLink of the GPU failed", unix_s=NOW, fatal=True)
    break_gpu(ranks[0], later)
    break_gpu(ranks[3])
    assert ranks.culprits(GpuFault()) == [3, 0]


def test_a_run_that_trains_is_left_alone_whatever_its_gpus_say() -> None:
    ranks = Ranks()
    break_gpu(ranks[2])
    ranks[2].gpu.throttles.append("hw_slowdown")
    assert verdict(ranks.set(*range(4), stalled_s=0.1)) is None


def test_a_rank_that_moves_is_not_named_because_of_its_gpu() -> None:
    ranks = hung_in_one_group(1)
    break_gpu(ranks[2])
    assert verdict(ranks.set(2, stalled_s=0.1)) is None


def test_heat_and_errors_of_one_process_are_no_reason_for_a_hang() -> None:
    ranks = hung_in_one_group(1)
    ranks[1].gpu.throttles.append("hw_thermal_slowdown")
    break_gpu(ranks[2], store.GpuFault(gpu=1, xid=31))
    assert verdict(ranks) is None


def test_a_death_explains_more() -> None:
    ranks = hung_in_one_group(1)
    break_gpu(ranks[1])
    assert verdict(ranks.end(3, signal=9)) is None


def test_the_run_is_restarted_without_patience_and_the_incident_says_why() -> None:
    world = World()
    world.until("starting")
    world.train(20)
    for number in range(4):
        group = world.rank(number).progress.groups[0]
        group.enqueued += 1  # all have entered the call
    world.moving = set(range(4))  # a thread that waits for its GPU spins
    break_gpu(world.rank(2))
    world.stand(3.0)
    (incident,) = world.incidents
    assert list(incident.verdict.culprits) == [2]
    assert "Xid 79 on its GPU 3" in incident.verdict.message
    assert any("restart: rank 2 stands still, after Xid 79" in action.what for action in incident.actions)
