"""Checks of replayed steps in the trainer's layouts: the bits stay the same, and the rank with a wrong one is found."""

from typing import Any

import torch
import torch.distributed as dist

import holdfast_hooks
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.replay.step_replay import ReplayRecord, StepReplay
from holdfast_proto.snapshot import allocate
from holdfast_proto.v1 import session_pb2 as session
from holdfast_trainer.config import TrainerConfig
from tests.trainer.number_cases import Rank
from tests.trainer_hooks.conftest import SnapshotBench

STEPS, EVERY = 5, 2
CULPRIT = 1


def check_replayed(config: TrainerConfig) -> None:
    """Train with replays, with one wrong result in the last step's first run; raise if it is not found exactly."""
    rank = Rank(config)
    folder = config.data.cache_directory
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"slot-{dist.get_rank()}-{number}" for number in range(3)]
    for path in paths:
        allocate(path, 4 << 20)
    state: dict[str, Any] = {
        "model": holdfast_hooks.merged(rank.parts.modules),
        "optimizer": holdfast_hooks.by_name(rank.optimizer, rank.parts.modules),
    }
    if rank.scaler is not None:
        state["loss_scale"] = rank.scaler
    bench = SnapshotBench(state, paths, rank=dist.get_rank())
    replay = StepReplay(state=state, own={}, snapshots=bench.snapshots, timeline=bench.timeline, once=OnceLog())
    for step in range(STEPS):
        bench.timeline.begin(step)
        if step == STEPS - 1 and dist.get_rank() == CULPRIT:
            _, block = max(rank.parts.modules[0].layers.items())
            SpoilOnce(block)
        replay.run(lambda step=step: train(rank, step), EVERY)  # type: ignore[misc]
        rank.scheduler.step()
        check_record(bench.timeline.values.get("replay"), step)
        bench.end(step)

    undisturbed = Rank(config)
    for step in range(STEPS):
        train(undisturbed, step)
        undisturbed.scheduler.step()
    for name, weight in undisturbed.weights().items():
        assert torch.equal(weight, rank.weights()[name]), name


def train(rank: Rank, step: int) -> None:
    rank.forward_backward(step)
    rank.take_update()


def check_record(record: object, step: int) -> None:
    if step == 0 or step % EVERY:
        assert record is None
        return
    assert isinstance(record, ReplayRecord)
    is_found = step == STEPS - 1 and dist.get_rank() == CULPRIT
    assert (bool(record.check.part), record.check.vote) == (
        is_found,
        session.REPLAY_VOTE_SECOND if is_found else session.REPLAY_VOTE_UNSPECIFIED,
    ), record.check
    assert not record.check.refusal
    assert record.check.duration_s > 0


class SpoilOnce:
    """Changes one number of the first output of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._handle = module.register_forward_hook(self._spoil)

    def _spoil(self, module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        self._handle.remove()
        wrong = torch.zeros_like(output)
        wrong.view(-1)[0] = 1e-3
        return output + wrong
