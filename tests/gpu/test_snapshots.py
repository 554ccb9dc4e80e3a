"""Snapshots of a state on the GPU: the copies are exact although training continues."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.timing import busy_for
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.replicas.replica_check import held_parameters
from holdfast_hooks.restore.slot_restore import restore
from holdfast_hooks.snapshots.slot_requests import SlotPreparation
from holdfast_hooks.state import random_states
from holdfast_proto.snapshot import Slot
from holdfast_proto.v1.session_pb2 import SnapshotTaken

pytestmark = pytest.mark.gpu
MakeSlots = Callable[..., list[Path]]


class LateSnapshots:
    """Takes what the landing thread reports."""

    def __init__(self) -> None:
        self.taken: list[SnapshotTaken] = []
        self._changed = threading.Condition()

    def keep(self, taken: SnapshotTaken) -> None:
        with self._changed:
            self.taken.append(taken)
            self._changed.notify_all()

    def wait(self) -> SnapshotTaken:
        with self._changed:
            assert self._changed.wait_for(lambda: self.taken, 60)
            return self.taken[-1]


def test_a_snapshot_holds_the_state_at_the_end_of_its_step_although_the_next_step_changes_it(
    bench: Any, make_slots: MakeSlots, gpu: torch.device
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256).to(gpu)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train() -> None:
        model(torch.ones(4, 256, device=gpu)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    train()
    late = LateSnapshots()
    run = bench({"model": model, "optimizer": optimizer}, late=late.keep, snapshot_every=1)
    assert run.end(0) is None  # it asks for slots, and shows which GPU will copy into them
    paths = make_slots(3, nbytes=8 << 20)
    run.grant(paths)
    run.slot_requests.next_request()  # the reporter does so: it locks the slots, and without that every copy would wait
    run.slot_requests._preparation.join()
    expected = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    busy_for(0.5, "cuda")
    assert run.end(1) is None
    assert late.taken == [], "the training thread has waited for the copies"
    train()
    taken = late.wait()
    torch.cuda.synchronize()
    other = torch.nn.Linear(256, 256).to(gpu)
    state: dict[str, Any] = {"model": other, "optimizer": torch.optim.AdamW(other.parameters(), fused=True)}
    assert restore(paths[taken.slot], state, rank=0) == 1
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value.cpu(), expected[name], rtol=0, atol=0)
    assert not torch.equal(model.weight.cpu(), expected["weight"])
    run.snapshots.close(10.0)


def test_slots_are_locked_for_the_gpu_and_again_after_they_went(
    make_slots: MakeSlots, gpu: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    torch.ones(1, device=gpu)
    paths = make_slots(2)
    for _ in range(2):  # CUDA refuses memory that is still locked, and a new mapping often has the old one's address
        slots = [Slot(path) for path in paths]
        preparation = SlotPreparation(slots, OnceLog())
        preparation.lock_for(gpu.index, slots)
        preparation.join()
        assert all(torch.frombuffer(slot.buffer, dtype=torch.uint8).is_pinned() for slot in slots)
        del slots
        gc.collect()
    assert caplog.messages == []


def test_random_numbers_of_the_gpu_continue_where_they_were(gpu: torch.device) -> None:
    torch.cuda.manual_seed(7)
    torch.rand(3, device=gpu)
    states = random_states.capture()
    first = torch.rand(5, device=gpu)
    torch.rand(9, device=gpu)
    random_states.restore(states)
    assert torch.equal(torch.rand(5, device=gpu), first)


def test_parameters_on_the_gpu_are_compared_like_others(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch, nccl: torch.device
) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    held = held_parameters({"model": torch.nn.Linear(4, 4).to(gpu)})
    assert set(held.plain) == {"model/weight", "model/bias"}
