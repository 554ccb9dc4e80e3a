"""What a node says about the GPUs of its ranks: in its state, and about ranks that have ended."""

import os
import signal
from pathlib import Path

from holdfast_agent.devices.gpu import Gpu, GpuSample
from holdfast_agent.devices.xids import Xid
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1 import warm_parent_pb2 as parent_pb
from tests.support.nodes import RecordedNode, begin, make_node

GONE = 2**22 + 1
"""No process has this pid."""


async def node_on_gpus(folder: Path) -> RecordedNode:
    """A node with rank 0 on GPU 0 and rank 1 on GPU 1."""
    node = make_node(folder)
    begin(node, 1, {0: os.getpid(), 1: GONE})
    node.devices.take(GpuSample(tuple(Gpu(index, f"GPU-{index}", f"0000:4{index}:00.0") for index in (0, 1))))
    for rank in node.ranks.values():
        report = session.Report(device="cuda:0", device_uuid=f"GPU-{rank.rank}")
        await node.messages.receive(rank, session.RankMessage(report=report))
    return node


def state_of(node: RecordedNode, rank: int) -> store.RankState:
    return next(state for state in node.state(ready=True).ranks if state.rank == rank)


async def test_the_state_has_the_gpu_of_each_rank_and_its_fatal_error(folder: Path) -> None:
    node = await node_on_gpus(folder)
    assert (state_of(node, 1).device, state_of(node, 1).gpu.gpu) == ("cuda:0", 1)
    assert not state_of(node, 1).gpu.HasField("fault")
    node.devices.take_xid(Xid(79), "GPU-1")
    assert state_of(node, 1).gpu.fault.xid == 79
    assert not state_of(node, 0).gpu.HasField("fault")


def killed(rank: int, number: int = signal.SIGABRT) -> parent_pb.Exited:
    return parent_pb.Exited(generation=1, rank=rank, pid=GONE, wait_status=number)


async def test_an_end_names_the_error_of_the_gpu_that_came_before_it(folder: Path) -> None:
    node = await node_on_gpus(folder)
    node.devices.take_xid(Xid(79), "GPU-1")
    node.supervisor().exits.on_reaped(killed(1))
    assert state_of(node, 1).exit.gpu_fault.xid == 79
    assert node.link.emitted[-1].rank_exited.exit.gpu_fault.meaning == "the GPU has fallen off the bus"


async def test_an_end_is_explained_later_if_the_error_shows_later(folder: Path) -> None:
    node = await node_on_gpus(folder)
    exits = node.supervisor().exits
    exits.on_reaped(killed(1))
    assert not state_of(node, 1).exit.HasField("gpu_fault")
    node.devices.take_xid(Xid(31), "GPU-1")
    node.changed.clear()
    exits.explain_later()
    assert state_of(node, 1).exit.gpu_fault.xid == 31
    assert node.changed.is_set()


async def test_a_rank_that_left_with_success_has_no_fault(folder: Path) -> None:
    node = await node_on_gpus(folder)
    node.devices.take_xid(Xid(79), "GPU-1")
    node.supervisor().exits.on_reaped(killed(1, 0))
    assert not state_of(node, 1).exit.HasField("gpu_fault")
