"""The training loop."""

import random
import time

import numpy
import torch
from torch import Tensor

import holdfast_hooks
from holdfast_hooks import Phase, Stateful
from holdfast_trainer.batches import Batches
from holdfast_trainer.config import TrainConfig, TrainerConfig
from holdfast_trainer.corpus import Corpus
from holdfast_trainer.device import Device, process_group
from holdfast_trainer.evaluate import validation_loss
from holdfast_trainer.mesh import Mesh
from holdfast_trainer.model import Transformer
from holdfast_trainer.optimizer import clip_gradient, make_optimizer, make_scheduler
from holdfast_trainer.parallelize import parallelize
from holdfast_trainer.pipeline import make_runner


def train(config: TrainerConfig, corpus: Corpus, device: Device) -> Transformer:
    """Train from the seed, or from the state that the hooks restore; return this rank's part of the model.

    Errors of peers (`Connection closed by peer`) are let through: whoever started the ranks decides what next.
    """
    seed_random_states(config.train.seed)
    with process_group(device, timeout_s=config.distributed.timeout_s):
        mesh = Mesh.create(config.parallel, device.kind)
        model = parallelize(config, mesh, device.torch_device)
        optimizer = make_optimizer(model, config.optimizer)
        scheduler = make_scheduler(optimizer, config.optimizer, steps=config.train.steps)
        runner = make_runner(config, mesh, model, device.torch_device)
        batches = Batches(config, corpus, dp_index=mesh.index("dp"), device=device.torch_device)
        progress = ProgressLine(config)
        state: dict[str, Stateful] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        with holdfast_hooks.attach(state=state, coordinates=mesh.coordinates, device=device.kind) as hooks:
            for step in hooks.steps(until=config.train.steps):
                hooks.enter(Phase.DATA)
                batch = batches.training(step)
                hooks.enter(Phase.FORWARD_BACKWARD)
                loss = runner.forward_backward(batch)
                hooks.enter(Phase.OPTIMIZER)
                grad_norm = clip_gradient(model.parameters(), mesh, clip_norm=config.optimizer.clip_norm)
                learning_rate = optimizer.param_groups[0]["lr"]
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if mesh.is_reporter:
                    hooks.report(loss=loss, grad_norm=grad_norm, learning_rate=learning_rate, tokens=progress.tokens)
                    progress.step_done(step, loss, grad_norm)
                if is_due(step, config.train):
                    hooks.enter(Phase.EVAL)
                    held_out = validation_loss(runner, batches, count=config.train.validation_batches)
                    if mesh.is_reporter:
                        hooks.report(validation_loss=held_out)
                        progress.validated(step, held_out)
    return model


def seed_random_states(seed: int) -> None:
    """Derive every random state from the run's seed: two runs of it draw the same numbers, whoever draws."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def is_due(step: int, config: TrainConfig) -> bool:
    """Whether a validation follows ``step``."""
    return config.validate_every > 0 and (step + 1) % config.validate_every == 0


class ProgressLine:
    """Prints how training goes, a line every ``train.log_every`` steps."""

    def __init__(self, config: TrainerConfig) -> None:
        self.tokens = config.train.global_batch * config.data.sequence
        """Per step, over all ranks."""
        self._every = config.train.log_every
        self._steps = 0
        self._since_s = time.monotonic()

    def step_done(self, step: int, loss: Tensor | None, grad_norm: Tensor) -> None:
        """Count the step; print if a line is due."""
        self._steps += 1
        if (step + 1) % self._every:
            return
        assert loss is not None
        now_s = time.monotonic()
        speed = self._steps * self.tokens / (now_s - self._since_s)
        self._steps, self._since_s = 0, now_s
        print(f"step {step}  loss {loss:.4f}  grad norm {grad_norm:.3f}  {speed:,.0f} tokens/s", flush=True)

    def validated(self, step: int, loss: Tensor | None) -> None:
        """Print the validation loss."""
        print(f"step {step}  validation loss {loss:.4f}", flush=True)
