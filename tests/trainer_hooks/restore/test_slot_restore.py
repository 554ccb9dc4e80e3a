import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast_hooks import ConfigurationError
from holdfast_hooks.restore.slot_restore import restore
from holdfast_proto.snapshot import Slot, SnapshotError

MakeSlots = Callable[..., list[Path]]


class Training:
    """A small model with everything that a run needs to continue bit by bit."""

    def __init__(self, width: int = 8, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.3), torch.nn.Linear(width, 2)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, milestones=[2, 4], gamma=0.5)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self) -> float:
        loss = self.model(torch.randn(16, 4) * random.random()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.item())


@pytest.fixture
def save(bench: Any, make_slots: MakeSlots) -> Callable[..., Path]:
    """A function that saves a state, and returns its slot."""

    def save_state(state: dict[str, Any], step: int = 0) -> Path:
        run = bench(state, make_slots(), snapshot_every=1)
        slot: int = run.end(step).slot
        return Path(run.paths[slot])

    return save_state


@pytest.fixture
def saved(save: Callable[..., Path]) -> tuple[Training, Path]:
    """A training after its first step, and the slot that holds its state."""
    training = Training()
    training.step()
    return training, save(training.state)


def test_restored_training_is_bit_identical(save: Callable[..., Path]) -> None:
    undisturbed = Training()
    for _ in range(3):
        undisturbed.step()
    slot = save(undisturbed.state, step=2)
    losses = [undisturbed.step() for _ in range(3)]

    restored = Training(seed=1)
    random.seed(99)
    assert restore(slot, restored.state, rank=0) == 2
    assert [restored.step() for _ in range(3)] == losses
    for name, expected in undisturbed.model.state_dict().items():
        assert torch.equal(expected, restored.model.state_dict()[name]), name
    assert restored.scheduler.state_dict() == undisturbed.scheduler.state_dict()


def test_restored_state_does_not_share_memory_with_the_slot(saved: tuple[Training, Path]) -> None:
    _, slot = saved
    restored = Training()
    restore(slot, restored.state, rank=0)
    moments = restored.optimizer.state[next(restored.model.parameters())]
    before = [value.clone() for value in moments.values()]
    with Slot(slot) as mapped:
        mapped.buffer[4096:] = bytes(mapped.nbytes - 4096)
    assert all(map(torch.equal, before, moments.values()))


@pytest.mark.parametrize("more", [-4, 4, 1 << 20])
def test_a_tensor_with_another_number_of_bytes_than_its_shape_has_is_refused(
    saved: tuple[Training, Path], more: int
) -> None:
    training, slot = saved
    with Slot(slot) as mapped:
        meta = mapped.meta()
        first = replace(meta.tensors[0], nbytes=meta.tensors[0].nbytes + more)
        header = mapped.header
        (slot.parent / "copy").write_bytes(bytes(mapped.buffer) + bytes(2 << 20))
    with Slot(slot.parent / "copy") as mapped:
        mapped.commit(replace(meta, tensors=(first, *meta.tensors[1:])), data_bytes=header.data_bytes, persist=False)
    with pytest.raises(SnapshotError, match=r"is damaged: 'model/0\.weight' has"):
        restore(slot.parent / "copy", training.state, rank=0)


def test_live_tensors_are_filled_where_they_are(saved: tuple[Training, Path]) -> None:
    training, slot = saved
    moment = training.optimizer.state[next(training.model.parameters())]["exp_avg"].clone()
    training.step()
    before = training.optimizer.state[next(training.model.parameters())]["exp_avg"]
    restore(slot, training.state, rank=0)
    after = training.optimizer.state[next(training.model.parameters())]["exp_avg"]
    assert after.data_ptr() == before.data_ptr()
    assert torch.equal(after, moment)


def test_scattered_live_tensors_are_restored(save: Callable[..., Path]) -> None:
    model = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    slot = save({"model": model})
    restored = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    restore(slot, {"model": restored}, rank=0)
    assert torch.equal(restored.weight, model.weight)
    assert restored.weight.is_contiguous(memory_format=torch.channels_last)


def test_numpy_random_state_is_restored(saved: tuple[Training, Path]) -> None:
    numpy = pytest.importorskip("numpy")
    training, slot = saved
    drawn = numpy.random.rand(3).tolist()
    restore(slot, training.state, rank=0)
    assert numpy.random.rand(3).tolist() == drawn


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state | {"model": Training(width=6).model},
            r"cannot restore model/0.weight: the saved state has float32 \(8, 4\), this run float32 \(6, 4\); "
            r"model/0.bias: .* float32 \(6,\); .*use another run name, or another checkpoint directory$",
        ),
        (
            lambda state: state | {"model": Training().model.double()},
            r"model/0.weight: the saved state has float32 \(8, 4\), this run float64 \(8, 4\);",
        ),
        (
            lambda state: state | {"model": Training().model[:2]},
            r"model/3.weight: the saved state has float32 \(2, 8\), this run no such tensor;",
        ),
        (
            lambda state: state | {"model": torch.nn.Sequential(*Training().model, torch.nn.Linear(2, 2))},
            r"model/4.weight: the saved state has no such tensor, this run float32 \(2, 2\);",
        ),
        (lambda state: state | {"ema": torch.optim.SGD([torch.zeros(1)])}, "ema: only this run has it;"),
        (lambda state: {"model": state["model"]}, r"optimizer/state/0/step: .* this run no such tensor;"),
        (lambda state: {k: v for k, v in state.items() if k != "scheduler"}, "scheduler: only the saved state has it;"),
        (
            lambda state: state | {"optimizer": torch.optim.AdamW([torch.zeros(1, requires_grad=True)])},
            "cannot restore optimizer: ValueError",
        ),
    ],
)
def test_state_that_does_not_fit_is_refused_in_one_line(
    saved: tuple[Training, Path], change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    _, slot = saved
    with pytest.raises(ConfigurationError, match=message) as caught:
        restore(slot, change(Training().state), rank=0)
    assert "\n" not in str(caught.value)


def test_torn_snapshot_is_not_restored(saved: tuple[Training, Path]) -> None:
    training, path = saved
    with Slot(path) as slot:
        slot.begin(generation=2, step=1, rank=0)
    with pytest.raises(SnapshotError, match="holds no complete snapshot"):
        restore(path, training.state, rank=0)


def test_snapshot_of_another_rank_is_not_restored(saved: tuple[Training, Path]) -> None:
    training, path = saved
    with pytest.raises(SnapshotError, match="holds the state of rank 0, not of rank 1"):
        restore(path, training.state, rank=1)
