from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast_proto.snapshot import Slot

ELEMENTS = 50_001


class Model:
    """One tensor that is trained and one that is frozen."""

    def __init__(self) -> None:
        self.trained = torch.zeros(ELEMENTS)
        self.frozen = torch.rand(ELEMENTS)

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained, "frozen": self.frozen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_frozen_tensors_are_written_once_into_each_slot(bench: Any, make_slots: Callable[..., list[Path]]) -> None:
    model = Model()
    paths = make_slots()
    run = bench({"model": model}, paths, snapshot_every=1)
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
