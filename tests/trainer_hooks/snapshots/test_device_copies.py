"""The order of events when a GPU copies. A fake stream stands in for the GPU."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

from holdfast_hooks.snapshots import snapshot_taker
from holdfast_hooks.snapshots.device_copies import CopyEvent, DeviceCopy
from holdfast_hooks.snapshots.slot_layout import SlotTensors
from holdfast_hooks.state.encoding import Image, TensorPart
from holdfast_proto.snapshot import Slot, SlotState
from holdfast_proto.v1.session_pb2 import SnapshotTaken

DEADLINE_S = 30.0
MakeSlots = Callable[..., list[Path]]


class Stream:
    """A stream that copies when a test lets the device get that far. It records all requests."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.error: RuntimeError | None = None
        self._reached = threading.Event()

    def copy(self, copies: Sequence[DeviceCopy]) -> "Event":
        self.calls.append(("copy", names(copies)))
        return Event(self, copies)

    def hold_back(self, event: CopyEvent) -> None:
        assert isinstance(event, Event)
        self.calls.append(("hold back", names(event.copies)))

    def reach(self) -> None:
        self._reached.set()

    def wait(self) -> None:
        assert self._reached.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error


class Event:
    def __init__(self, stream: Stream, copies: Sequence[DeviceCopy]) -> None:
        self.copies = copies
        self._stream = stream

    def synchronize(self) -> None:
        self._stream.wait()
        for place, part in self.copies:
            place.copy_(part.local.detach())


class Run:
    """A rank on a GPU: snapshots of a model with a parameter and a buffer, and of its optimizer."""

    def __init__(self, bench: Any, paths: list[Path], **context: Any) -> None:
        self.paths = paths
        self.late: list[SnapshotTaken] = []
        self.model = torch.nn.BatchNorm1d(3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), momentum=0.9)
        self.train()
        state = {"model": self.model, "optimizer": self.optimizer}
        self.rank = bench(state, paths, late=self._keep_late, snapshot_every=1, **context)
        self._reported = threading.Condition()

    def _keep_late(self, taken: SnapshotTaken) -> None:
        with self._reported:
            self.late.append(taken)
            self._reported.notify_all()

    def wait_for_late(self, count: int) -> None:
        with self._reported:
            assert self._reported.wait_for(lambda: len(self.late) == count, DEADLINE_S)

    def train(self) -> None:
        self.model(torch.randn(4, 3)).sum().backward()
        self.optimizer.step()

    def states(self) -> list[SlotState]:
        found = []
        for path in self.paths:
            with Slot(path) as slot:
                found.append(slot.header.state)
        return found


def names(copies: Sequence[DeviceCopy]) -> list[str]:
    return [copy.part.name for copy in copies if not copy.part.name.startswith("_random/")]


MOMENTA = [f"optimizer/state/{index}/momentum_buffer" for index in (0, 1)]
UPDATED = ["model/weight", "model/bias", *MOMENTA]
OTHERS = ["model/running_mean", "model/running_var", "model/num_batches_tracked"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    """Treat all tensors as ones that a GPU has to copy."""
    stream = Stream()

    def copy_nothing(tensors: Any, parts: Any) -> list[DeviceCopy]:
        return [DeviceCopy(place.tensor, part) for place, part in zip(tensors._places, parts, strict=True)]

    monkeypatch.setattr(SlotTensors, "copy", copy_nothing)
    monkeypatch.setattr(snapshot_taker, "CudaCopyStream", lambda: stream)
    yield stream
    torch_optimizer._global_optimizer_pre_hooks.clear()


@pytest.fixture
def run(bench: Any, make_slots: MakeSlots, gpu: Stream) -> Run:
    return Run(bench, make_slots(3))


def test_snapshot_is_complete_and_reported_only_after_the_copies(run: Run, gpu: Stream) -> None:
    assert run.rank.end(0) is None
    assert run.states() == [SlotState.WRITING, SlotState.EMPTY, SlotState.EMPTY]
    assert run.late == []
    gpu.reach()
    run.wait_for_late(1)
    assert [(taken.step, taken.slot, taken.persist, taken.stall_s > 0) for taken in run.late] == [(0, 0, False, True)]
    assert run.states() == [SlotState.COMPLETE, SlotState.EMPTY, SlotState.EMPTY]


def test_optimizer_waits_once_for_its_copies_and_anything_else_immediately(run: Run, gpu: Stream) -> None:
    run.rank.end(0)
    assert gpu.calls == [("copy", OTHERS), ("hold back", OTHERS), ("copy", UPDATED)]
    gpu.calls.clear()
    run.train()
    assert gpu.calls == [("hold back", UPDATED)]
    run.train()
    assert gpu.calls == [("hold back", UPDATED)]
    gpu.reach()


def test_next_snapshot_waits_for_the_one_before(bench: Any, make_slots: MakeSlots, gpu: Stream) -> None:
    run = Run(bench, make_slots(3), checkpoint_every=1)
    run.rank.end(0)
    device = threading.Timer(0.05, gpu.reach)
    device.start()
    run.rank.end(1)
    device.join()
    run.wait_for_late(2)
    assert [(taken.step, taken.persist) for taken in run.late] == [(0, True), (1, False)]
    assert run.states() == [SlotState.COMPLETE, SlotState.COMPLETE, SlotState.EMPTY]
    assert run.rank.snapshots.skipped_total == 1


def test_a_snapshot_for_a_replica_is_pinned_once_its_copies_are_done(run: Run, gpu: Stream) -> None:
    run.rank.end(0, replica=True)
    assert not Slot(run.paths[0]).header.replica
    gpu.reach()
    run.rank.end(1)
    run.wait_for_late(2)
    assert [(taken.step, taken.slot, taken.replica) for taken in run.late] == [(0, 0, True), (1, 1, False)]
    assert [Slot(path).header.replica for path in run.paths] == [True, False, False]


def test_last_snapshot_is_complete_when_the_loop_ends(run: Run, gpu: Stream) -> None:
    gpu.reach()
    run.rank.end(0, last=True)
    assert [taken.persist for taken in run.late] == [True]
    assert run.states()[0] is SlotState.COMPLETE


def test_closing_waits_for_the_copies_and_hooks_into_no_optimizer(run: Run, gpu: Stream) -> None:
    run.rank.end(0)
    device = threading.Timer(0.05, gpu.reach)
    device.start()
    run.rank.snapshots.close(DEADLINE_S)
    device.join()
    assert [taken.step for taken in run.late] == [0]
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert run.rank.end(1) is None
    assert len(run.late) == 1


def test_copies_that_outlast_the_closing_are_held_back_for(run: Run, gpu: Stream) -> None:
    run.rank.end(0)
    gpu.calls.clear()
    run.rank.snapshots.close(0.0)
    assert gpu.calls == [("hold back", UPDATED)]
    assert not torch_optimizer._global_optimizer_pre_hooks
    gpu.reach()
    run.wait_for_late(1)
    assert run.states()[0] is SlotState.COMPLETE


def test_failed_copies_leave_no_snapshot_and_are_counted(
    run: Run, gpu: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.error = RuntimeError("device lost")
    gpu.reach()
    run.rank.end(0)
    run.rank.end(1, last=True)
    assert (run.late, run.rank.snapshots.skipped_total) == ([], 2)
    assert SlotState.COMPLETE not in run.states()
    assert caplog.messages == ["a snapshot failed, training continues: RuntimeError('device lost')"]


def test_without_a_listener_the_copies_are_waited_for(bench: Any, make_slots: MakeSlots, gpu: Stream) -> None:
    rank = bench({"model": torch.nn.Linear(2, 2)}, make_slots(3), snapshot_every=1)
    assert rank.end(0).step == 0
    assert gpu.calls == []


def test_a_rank_whose_copies_are_late_asks_for_a_third_slot(
    bench: Any, make_slots: MakeSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.empty(3, device="meta")
    image = Image({}, (TensorPart("w", weight, weight, (3,), (0,)),), ())
    rank = bench({}, late=lambda taken: None, snapshot_every=2)
    monkeypatch.setattr(rank.snapshots, "capture", lambda: image)
    rank.end(0)
    request = rank.slot_requests.next_request()
    assert request.slots == 3
    rank.grant(make_slots(2, nbytes=request.bytes_per_slot))
    assert rank.slot_requests.next_request() is None  # there was no room for more
    rank.slot_requests.forget_request()
    assert rank.slot_requests.next_request() == request
    rank.grant(make_slots(3, nbytes=request.bytes_per_slot, prefix="more"))
    assert rank.slot_requests.next_request() is None
