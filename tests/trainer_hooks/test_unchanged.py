from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast_hooks import unchanged
from holdfast_proto.snapshot import Slot

ELEMENTS = 50_001


def is_unchanged(place: torch.Tensor, source: torch.Tensor) -> bool:
    return unchanged.is_unchanged(place.data_ptr(), source.data_ptr(), source.nbytes)


class Model:
    """One tensor that is trained and one that is frozen."""

    def __init__(self) -> None:
        self.trained = torch.zeros(ELEMENTS)
        self.frozen = torch.rand(ELEMENTS)

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained, "frozen": self.frozen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("index", [0, 1, 7_000, 25_000, 33_333, ELEMENTS - 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_changed_element_is_found_wherever_it_is(index: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        source = torch.rand(ELEMENTS)
        place = source.clone()
        assert is_unchanged(place, source)
        source.data[index] += 1
        assert not is_unchanged(place, source)
    finally:
        torch.set_num_threads(before)


def test_bits_are_compared_and_not_numbers() -> None:
    source = torch.zeros(ELEMENTS)
    place = source.clone()
    place[123] = -0.0
    assert not is_unchanged(place, source)
    place[123], source[123] = torch.nan, torch.nan
    assert is_unchanged(place, source)


def test_frozen_tensors_are_written_once_into_each_slot(
    bench: Any, make_slots: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    run = bench({"model": model}, snapshot_every=1)
    paths = make_slots()
    run.grant(paths)
    in_place: list[int] = []
    for step in range(5):
        model.trained += 1
        taken = run.end(step)
        in_place.append(taken.unchanged_bytes)
        with Slot(paths[taken.slot]) as slot:
            for entry in slot.meta().tensors:
                if entry.name.startswith("model/"):
                    live = getattr(model, entry.name.removeprefix("model/"))
                    assert bytes(slot.tensor_bytes(entry)) == live.numpy().tobytes()
    assert in_place == [0, 0, 0, model.frozen.nbytes, model.frozen.nbytes]
