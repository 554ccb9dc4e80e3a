"""Copies, numbers and locked memory of a rank on GPU 3: right from every thread, and no other GPU gets a context."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.snapshots.device_copies import CudaCopyStream, DeviceCopy, Landing
from holdfast_hooks.snapshots.slot_requests import SlotPreparation
from holdfast_hooks.state import random_states
from holdfast_hooks.state.encoding import TensorPart
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_proto.snapshot import Slot
from tests.support.fake_cuda import FakeCuda, TensorOn


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    gpus = FakeCuda(4)
    gpus.use(3)
    gpus.install(monkeypatch)
    return gpus


def copy_of(tensor: Any) -> DeviceCopy:
    return DeviceCopy(torch.zeros(1), TensorPart("w", tensor, tensor, (1,), (0,)))


def reach(events: Any) -> None:
    for _, event in events:
        event.reached.set()


def test_copies_run_behind_the_work_of_the_gpu_that_has_the_tensor(cuda: FakeCuda) -> None:
    streams = CudaCopyStream()
    point = streams.copy([copy_of(TensorOn("cuda:3"))])
    streams.hold_back(point)
    work = ["copies of 3 waits for default of 3", "record copies of 3", "default of 3 waits for an event"]
    assert cuda.log == work
    assert cuda.contexts == {3}


def test_tensors_of_several_gpus_have_a_stream_and_an_event_each(cuda: FakeCuda) -> None:
    cuda.use(1)
    streams = CudaCopyStream()
    copies = [copy_of(TensorOn(device, value)) for value, device in enumerate(("cuda:1", "cuda:3", "cuda:1", "cpu"), 1)]
    point = streams.copy(copies)
    assert [gpu for gpu, _ in point.events] == [1, 3]
    assert [copy.place.item() for copy in copies] == [1, 2, 3, 4]
    streams.copy(copies)
    assert cuda.log.count("copies of 1 waits for default of 1") == 2
    assert cuda.contexts == {1, 3}


def test_a_snapshot_without_tensors_on_a_gpu_is_complete_immediately() -> None:
    assert CudaCopyStream().copy([]).query()


def test_the_thread_that_waits_for_copies_uses_the_gpu_of_the_copies(cuda: FakeCuda) -> None:
    point = CudaCopyStream().copy([copy_of(TensorOn("cuda:3"))])
    landed = threading.Event()
    landing = Landing(point, [], landed.set, OnceLog())
    assert not landed.is_set()
    reach(point.events)
    landing.wait(30)
    assert landed.is_set()
    assert cuda.contexts == {3}


def test_numbers_of_several_gpus_are_read_when_all_have_arrived(cuda: FakeCuda) -> None:
    cuda.use(2)
    tensors: Any = [TensorOn("cuda:2", 5), TensorOn("cuda:3", 6)]
    numbers = DeferredNumbers.of(tensors)
    assert numbers.arrived is not None and {gpu for gpu, _ in numbers.arrived.events} == {2, 3}
    with ThreadPoolExecutor() as threads:
        for events in (numbers.arrived.events[:1], numbers.arrived.events[1:]):
            assert threads.submit(numbers.read).result() is None
            reach(events)
    assert numbers.read() == [5, 6]
    assert cuda.contexts == {2, 3}


def test_slots_are_locked_and_unlocked_on_the_gpu_that_copies_into_them(
    cuda: FakeCuda, make_slots: Callable[..., list[Path]]
) -> None:
    slots = [Slot(path) for path in make_slots(2)]
    preparation = SlotPreparation(slots, OnceLog())
    preparation.join()
    assert cuda.locked == {}
    preparation.lock_for(3, slots)
    preparation.lock_for(3, slots)
    preparation.join()
    assert list(cuda.locked.values()) == [1 << 20, 1 << 20]
    slots.clear()
    gc.collect()
    assert cuda.locked == {}
    assert cuda.contexts == {3}


def test_the_random_state_is_that_of_the_ranks_own_gpu(cuda: FakeCuda) -> None:
    saved = random_states.capture(3)
    assert saved["cuda"].item() == 3
    cuda.random[3] = torch.tensor([9], dtype=torch.uint8)
    random_states.restore(saved, 3)
    assert [cuda.random[gpu].item() for gpu in (0, 3)] == [0, 3]
