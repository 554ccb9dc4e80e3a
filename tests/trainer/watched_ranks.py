"""Checks of what the hooks find in the trainer's ranks: replicas that differ, and the origin of a bad gradient."""

import math
from typing import Any

import torch
import torch.distributed as dist

import holdfast_hooks
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.replicas.replica_check import ReplicaCheck, held_parameters
from holdfast_hooks.telemetry.gradient_origin import GradientWatch
from holdfast_proto.v1.session_pb2 import StepRecord
from holdfast_trainer.config import TrainerConfig
from tests.trainer.number_cases import Rank

EVERY_STEP = 1e9
"""Budget that is never exceeded."""


def check_watched(config: TrainerConfig) -> None:
    """Check that the hooks find nothing until memory or a gradient is corrupted, and then exactly that."""
    rank = Rank(config)
    state = {"model": holdfast_hooks.merged(rank.parts.modules)}
    replicas = ReplicaCheck(state, OnceLog(), budget_ratio=EVERY_STEP)
    watch = GradientWatch(OnceLog())
    for stage, module in zip(rank.parts.stages, rank.parts.modules, strict=True):
        watch.watch(module.chain(), then="head" if stage.is_last else None)

    for step in range(3):
        rank.forward_backward(step)
        rank.update()
        assert not found(watch).HasField("nonfinite_origin")
        assert conflicts(replicas, step) == set()

    sets = held_parameters(state).sets
    assert sets, "the layout holds nothing twice"
    if dist.get_rank() == dist.get_world_size() - 1:
        tensor = next(iter(next(iter(sets.values())).values()))
        tensor.view(torch.int32).view(-1)[0].bitwise_xor_(1)  # far too little for a loss to show
    assert len(conflicts(replicas, 3)) == 1

    check_origin(rank, watch)


def check_origin(rank: Rank, watch: GradientWatch) -> None:
    """Check that the last rank reports a bad gradient in its block, and the ranks that receive it do not."""
    culprit = dist.get_world_size() - 1
    name, block = max(rank.parts.modules[-1].layers.items())
    if dist.get_rank() == culprit:
        block.register_forward_hook(spoil_gradient)
    rank.forward_backward(3)
    origin = found(watch).nonfinite_origin
    reported: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reported, (origin.unix_s, dist.get_rank(), origin.module, f"layers.{name}"))
    _, first, module, _ = min(one for one in reported if one[0])
    # Tensor-parallel ranks exchange gradients within a block, so theirs go bad in it at the same time.
    tp = rank.config.parallel.tp
    assert first // tp == culprit // tp, reported
    assert reported[culprit][3] in module.split(" to "), reported  # a part of the chain, in a long one
    assert sum(one[0] > 0 for one in reported) <= tp, reported


def spoil_gradient(module: Any, inputs: Any, output: Any) -> None:
    output.register_hook(lambda gradient: gradient * math.nan)


def found(watch: GradientWatch) -> StepRecord:
    record = StepRecord()
    passed = watch.take()
    assert passed is not None and passed.put(record)
    return record


def conflicts(replicas: ReplicaCheck, step: int) -> set[str]:
    """Return the parts that differ between the ranks that hold them."""
    record = StepRecord()
    sums = replicas.check(step)
    assert sums is not None and sums.put(record)
    reported: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reported, {replica.part: replica.hash for replica in record.replicas})
    known: dict[str, int] = {}
    return {part for of_rank in reported for part, hash_ in of_rank.items() if known.setdefault(part, hash_) != hash_}
