"""Replays of steps on a GPU: its random numbers and its state are put back, and a wrong run is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.replay.step_replay import ReplayRecord, StepReplay
from holdfast_proto.v1 import session_pb2 as session

pytestmark = pytest.mark.gpu
MakeSlots = Callable[..., list[Path]]


def test_a_replay_finds_a_wrong_run_and_leaves_the_bits_of_an_undisturbed_training(
    bench: Any, make_slots: MakeSlots, gpu: torch.device
) -> None:
    found: list[object] = []

    def trained(wrong_step: int, every: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.2), nn.Linear(256, 1)).to(gpu)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        run = bench(state, make_slots(nbytes=4 << 20, prefix=f"slot-{every}"), late=lambda taken: None)
        replay = StepReplay(state=state, own={}, snapshots=run.snapshots, timeline=run.timeline, once=OnceLog())
        faults = {wrong_step}

        def train(step: int) -> None:
            loss = model(torch.full((64, 256), step + 1.0, device=gpu)).square().mean()
            loss = loss * (1 + 1e-4) if step in faults else loss
            faults.clear()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        for step in range(5):
            run.timeline.begin(step)
            if step == wrong_step:
                faults.add(step)
            replay.run(lambda step=step: train(step), every)  # type: ignore[misc]
            found.append(run.timeline.values.get("replay"))
            run.end(step)
        run.snapshots.close(60)
        return [parameter.detach().clone() for parameter in model.parameters()]

    with_fault, plain = trained(4, 2), trained(-1, 100)
    assert all(torch.equal(one, other) for one, other in zip(with_fault, plain, strict=True))
    clean, wrong = found[2], found[4]
    assert isinstance(clean, ReplayRecord) and not (clean.check.part or clean.check.refusal)
    assert isinstance(wrong, ReplayRecord) and wrong.check.vote == session.REPLAY_VOTE_SECOND
