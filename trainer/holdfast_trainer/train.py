"""The training loop, and how evenly a step used the experts."""

import random
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

import holdfast_hooks
from holdfast_hooks import Phase, Stateful
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import TrainConfig
from holdfast_trainer.data.batches import Batch, Batches
from holdfast_trainer.data.corpus import Corpus
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.moe.balance import collect_expert_statistics
from holdfast_trainer.optimizer import make_optimizer, make_scheduler
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.offload import offload_optimizer, state_device
from holdfast_trainer.parallel.parallelize import parallelize
from holdfast_trainer.pipeline.pipeline import Runner
from holdfast_trainer.precision.loss_scaling import make_loss_scaler
from holdfast_trainer.rank_device import RankDevice, process_group
from holdfast_trainer.training_log import TrainingLog
from holdfast_trainer.update import Update, update_parameters


def train(config: TrainerConfig, corpus: Corpus, device: RankDevice) -> ModelParts:
    """Train from the seed, or from the state that the hooks restore; return this rank's parts of the model.

    Errors of peers (`Connection closed by peer`) pass through: the process that started the ranks handles them.
    """
    seed_random_states(config.train.seed)
    with process_group(device, timeout_s=config.distributed.timeout_s):
        mesh = Mesh.create(config.parallel, device.kind)
        parts = parallelize(config, mesh, device.torch_device)
        optimizer = offload_optimizer(make_optimizer(parts.parameters(), config.optimizer), config.memory)
        scheduler = make_scheduler(optimizer, config.optimizer, steps=config.train.steps)
        scaler = make_loss_scaler(config.precision, state_device(config.memory, device.torch_device))
        runner = Runner(config, mesh, parts, device.torch_device, scaler)
        log = TrainingLog(config, device)
        is_reporter = mesh.is_first_replica and parts.holds_last_stage
        state: dict[str, Stateful] = {
            "model": holdfast_hooks.merged(parts.modules),
            "optimizer": holdfast_hooks.by_name(optimizer, parts.modules),
            "scheduler": scheduler,
        }
        if scaler is not None:
            state["loss_scale"] = scaler
        with (
            closing(Batches(config, corpus, device=device.torch_device, **mesh.data_indices)) as batches,
            holdfast_hooks.attach(
                state=state,
                coordinates=mesh.coordinates,
                replica_ranks=config.replica_ranks,
                device=str(device.torch_device),
                check_data_position=False,  # a number decides the batch of a step
                data_by_step=True,
            ) as hooks,
        ):
            for stage, module in zip(parts.stages, parts.modules, strict=True):
                # The head's output is not watched: the gradient of the logits is the largest of all.
                hooks.watch_gradients(module.chain(), then="head" if stage.is_last else None)

            def train_on(batch: Batch, measured: bool) -> tuple[Tensor | None, Update]:
                hooks.enter(Phase.FORWARD_BACKWARD)
                loss = runner.forward_backward(batch)
                hooks.report(samples=batch.fingerprint, pipeline_bubble=runner.bubble())
                hooks.enter(Phase.OPTIMIZER)
                return loss, update_parameters(
                    parts,
                    optimizer,
                    scaler,
                    mesh,
                    clip_norm=config.optimizer.clip_norm,
                    measured=measured,
                    should_update=hooks.should_update if config.optimizer.check_updates else None,
                )

            for step in hooks.steps(until=config.train.steps):
                hooks.enter(Phase.DATA)
                batch = batches.training(hooks.data_of(step))
                loss, update = hooks.replay(
                    partial(train_on, batch, log.is_logged(step)), every=config.train.replay_every
                )
                scheduler.step()  # the learning rate follows the number of the step, also if its update is skipped
                expert_use = expert_statistics(config, mesh, parts)
                if is_reporter:
                    hooks.report(
                        loss=loss,
                        tokens=log.tokens,
                        mfu=log.step_done(step, loss, update.grad_norm),
                        **vars(update),
                        **vars(expert_use),
                    )
                if is_due(step, config.train):
                    hooks.enter(Phase.EVAL)
                    held_out = validation_loss(runner, batches, count=config.train.validation_batches)
                    if is_reporter:
                        hooks.report(validation_loss=held_out)
                        log.validated(step, held_out)
    return parts


def seed_random_states(seed: int) -> None:
    """Seed Python, NumPy and torch with the run's seed, so that two runs draw the same numbers."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def validation_loss(runner: Runner, batches: Batches, *, count: int) -> Tensor | None:
    """Return the mean loss over ``count`` validation batches, or None on a rank without the last stage.

    All ranks must call it.
    """
    losses = [runner.evaluate(batches.validation(index)) for index in range(count)]
    known = [loss for loss in losses if loss is not None]
    return torch.stack(known).mean() if known else None


def is_due(step: int, config: TrainConfig) -> bool:
    """Return whether a validation follows ``step``."""
    return config.validate_every > 0 and (step + 1) % config.validate_every == 0


@dataclass(frozen=True)
class ExpertStatistics:
    """The numbers of one step, the same on all ranks. None if the model has no experts."""

    balance_loss: Tensor | None
    """Load-balance loss, averaged over blocks and sequences. 1 if all experts get the same number of picks."""
    dropped_tokens: Tensor | None
    """Number of picks that full experts dropped, over all blocks: int64."""


@torch.no_grad()
def expert_statistics(config: TrainerConfig, mesh: Mesh, parts: ModelParts) -> ExpertStatistics:
    """Return what was counted since the last call, without waiting for the device. All ranks must call it."""
    if not config.model.experts:
        return ExpertStatistics(None, None)
    counted = torch.cat([collect_expert_statistics(module) for module in parts.modules]).sum(dim=0)
    dist.all_reduce(counted)
    losses, dropped = counted / mesh.size("tp")
    return ExpertStatistics(losses / (config.train.global_batch * config.model.layers), dropped.long())
