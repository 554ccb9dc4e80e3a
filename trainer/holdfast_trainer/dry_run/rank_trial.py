"""The training step of one rank without peers or memory.

On torch's fake backend, collectives return immediately and change nothing. Under its fake tensor mode, tensors have
shapes and types but no elements. Both are private modules of torch. The step itself is the trainer's own code, so an
error of shapes or layouts appears where it would appear in training.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import Batch
from holdfast_trainer.dry_run.reduced import reduced, reduced_stages
from holdfast_trainer.dry_run.stand_ins import agree_on_static_shapes, spread_tokens_evenly
from holdfast_trainer.expert_statistics import expert_statistics
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.model.stages import held_stages
from holdfast_trainer.optimizer import make_optimizer, make_scheduler
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.offload import offload_optimizer, state_device
from holdfast_trainer.parallel.parallelize import initialise, make_part
from holdfast_trainer.pipeline.pipeline import Runner
from holdfast_trainer.precision.loss_scaling import make_loss_scaler
from holdfast_trainer.precision.skipped_step import SkipsOnHost
from holdfast_trainer.update import update_parameters

_CPU = torch.device("cpu")


@dataclass
class RankReport:
    """The result of the step of one rank."""

    coordinates: dict[str, int]
    """Coordinates as in :attr:`Mesh.coordinates`; empty if the meshes could not be made."""
    parameters: int = 0
    """Number of elements of the parameters on this rank."""
    problem: str = ""
    """Problem that ended the step, in one line that names the settings. Empty: none."""


def try_step(config: TrainerConfig, rank: int) -> RankReport:
    """Take a step as ``rank``. The process cannot try another rank afterwards: torch keeps the meshes of this one."""
    # torch's warnings and log lines say the same as its errors, which are reported.
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # With a GPU in sight, host memory would be pinned.
    report = RankReport({})
    try:
        _try_step(config, rank, report)
    except _FailedError as error:
        report.problem = str(error)
    return report


def _try_step(config: TrainerConfig, rank: int, report: RankReport) -> None:
    tried = reduced(config)
    agree_on_static_shapes()
    with _doing("the process groups", settings="[parallel]"):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=config.parallel.ranks)
        mesh = Mesh.create(tried.parallel, "cpu")
    report.coordinates = mesh.coordinates
    with _doing("building the model", settings="[model] or [parallel]"):
        stages = reduced_stages(config, mesh.index("pp"))
        parts = ModelParts(stages, tuple(make_part(tried, mesh, stage, _CPU) for stage in stages))
        report.parameters = _count_parameters(parts, config, mesh)
    # Positions and the biases of attention are real tensors: they were made before the mode began.
    with FakeTensorMode(allow_non_fake_inputs=True):
        _step(tried, mesh, parts)


def _step(config: TrainerConfig, mesh: Mesh, parts: ModelParts) -> None:
    """Do the same as the training loop in one step that a validation follows."""
    with _doing("building the model", settings="[model] or [parallel]"):
        initialise(parts, config, _CPU)
        for module in parts.modules:
            spread_tokens_evenly(module, mesh)
        optimizer = offload_optimizer(make_optimizer(parts.parameters(), config.optimizer), config.memory)
        scheduler = make_scheduler(optimizer, config.optimizer, steps=config.train.steps)
        scaler = make_loss_scaler(config.precision, state_device(config.memory, _CPU))
        runner = Runner(config, mesh, parts, _CPU, scaler)
    batch = _empty_batch(config)
    with _doing("the forward and backward passes", settings="[model], [data] or [parallel]"):
        runner.forward_backward(batch)
    with _doing("the update", settings="[optimizer] or [parallel]"):
        # An optimizer that skips on the host reads the value of a flag, and a fake tensor has no values.
        judged_by = None if isinstance(optimizer, SkipsOnHost) else scaler
        clip_norm = config.optimizer.clip_norm
        update_parameters(parts, optimizer, scheduler, judged_by, mesh, clip_norm=clip_norm, measured=True)
        expert_statistics(config, mesh, parts)
    with _doing("the validation", settings="[model], [data] or [parallel]"):
        runner.evaluate(batch)


def _empty_batch(config: TrainerConfig) -> Batch:
    sequence = config.data.sequence // config.parallel.cp
    tokens = torch.zeros(config.train.global_batch // config.parallel.dp, sequence, dtype=torch.int64)
    return Batch(inputs=tokens, targets=tokens, positions=tokens[0], fingerprint=b"")


def _count_parameters(parts: ModelParts, config: TrainerConfig, mesh: Mesh) -> int:
    """Return the elements on this rank with all blocks, of which ``parts`` have only a few."""
    total = 0
    for whole, module in zip(held_stages(config, mesh.index("pp")), parts.modules, strict=True):
        in_blocks = _elements(module.layers)
        total += _elements(module) - in_blocks + in_blocks * len(whole.layers) // len(module.layers)
    return total


def _elements(module: torch.nn.Module) -> int:
    return sum(
        (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
        for parameter in module.parameters()
    )


class _FailedError(Exception):
    """A part of the step failed. The message is for the user."""


@contextmanager
def _doing(activity: str, *, settings: str) -> Iterator[None]:
    """Turn an error into one line about ``activity`` that says which ``settings`` to change."""
    try:
        yield
    except Exception as error:
        # torch's schedules wrap the error of a stage. The innermost one says what is wrong.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        words = " ".join(str(cause).split()) or "no reason given"
        raise _FailedError(f"{activity}: {type(cause).__name__}: {words}: change {settings}") from error
