import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.snapshots.slot_requests import SlotPreparation
from holdfast_proto.snapshot import Slot
from tests.support.fake_cuda import FakeCuda

MakeSlots = Callable[..., list[Path]]


def mapped_kib(path: Path) -> int:
    """Return the KiB of a file of which this process has mapped pages."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return next(int(fields.split()[1]) for fields in lines if fields.startswith("Rss:"))
    raise AssertionError(f"{path} is not mapped")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Make this process look as if it used a GPU."""
    gpus = FakeCuda(1)
    gpus.use(0)
    gpus.install(monkeypatch)
    return gpus


def test_granted_slots_are_mapped_before_the_first_snapshot_and_stay_as_they_are(
    bench: Any, make_slots: MakeSlots
) -> None:
    (path,) = make_slots(1, nbytes=20 << 20)
    with path.open("r+b") as file:
        file.seek(15 << 20)
        file.write(b"earlier generation")
    run = bench({}, [path])
    for thread in threading.enumerate():
        if thread.name == "holdfast-slots":
            thread.join()
    assert mapped_kib(path) == 20 << 10
    assert run.slot_requests.grant.slots[0].buffer[15 << 20 :].startswith(b"earlier generation")


def test_slots_on_disk_are_not_written_ahead(bench: Any, make_slots: MakeSlots) -> None:
    paths = make_slots(1, nbytes=20 << 20)
    bench({}).grant(paths, on_disk=True)
    assert "holdfast-slots" not in {thread.name for thread in threading.enumerate()}


def test_memory_is_locked_once_a_gpu_has_to_copy_into_it_and_given_back_when_the_rank_closes_its_hooks(
    bench: Any, make_slots: MakeSlots, cuda: FakeCuda
) -> None:
    run = bench({"model": torch.nn.Linear(2, 2)}, make_slots(2), snapshot_every=1)
    run.slot_requests.next_request()
    assert run.end(0) is not None
    run.slot_requests._preparation.join()
    assert cuda.locked == {}
    run.slot_requests.gpu = 0
    run.slot_requests.next_request()
    run.slot_requests._preparation.join()
    assert len(cuda.locked) == 2
    run.snapshots.close(0.0)
    run.slot_requests.close(0.0)
    assert len(cuda.locked) == 2
    run.slot_requests.give_up_slots()
    gc.collect()
    assert cuda.locked == {}


def test_slots_are_not_made_ready_any_further_after_a_stop(make_slots: MakeSlots) -> None:
    slots = [Slot(path) for path in make_slots(8, nbytes=64 << 20)]
    preparation = SlotPreparation(slots, OnceLog())
    preparation.stop(timeout_s=10)
    assert sum(mapped_kib(slot.path) for slot in slots) < 8 * (64 << 10)


def test_memory_that_cannot_be_locked_is_logged_once(
    make_slots: MakeSlots, cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "cudaHostRegister", lambda *_: 2)
    slots = [Slot(path) for path in make_slots(2)]
    preparation = SlotPreparation(slots, OnceLog())
    preparation.lock_for(0, slots)
    preparation.join()
    assert caplog.messages == ["snapshots will stall the training thread: cudaHostRegister failed with error 2"]
