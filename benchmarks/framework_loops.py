"""Training loops of frameworks with next to no work, whose steps show what Holdfast adds to each of them."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

STEPS = 1000
WARM_UP_STEPS = 100


def trainer() -> list[float]:
    """Train with Hugging Face's Trainer; return the times at which steps end, in seconds."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Notes when steps end."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
            """Note the time."""
            ends.append(time.perf_counter())

    class Model(torch.nn.Module):
        """A model with next to no work."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:  # noqa: ARG002
            """Return a loss."""
            return {"loss": self.layer(input_ids).square().mean()}

    torch.set_num_threads(1)
    rows = [{"input_ids": torch.ones(8), "labels": torch.ones(1)} for _ in range(1024)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=8,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(Model(), arguments, train_dataset=rows, callbacks=[HoldfastCallback(), Clock()]).train()
    return ends


def lightning() -> list[float]:
    """Fit with Lightning; return the times at which batches end, in seconds."""
    import lightning as pl
    import torch

    from holdfast_hooks.frameworks.lightning import LightningHoldfast

    ends: list[float] = []

    class Clock(pl.Callback):  # type: ignore[misc]
        """Notes when batches end."""

        def on_train_batch_end(self, *_: Any) -> None:
            """Note the time."""
            ends.append(time.perf_counter())

    class Layer(pl.LightningModule):  # type: ignore[misc]
        """A model with next to no work."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            """Return a loss."""
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return the simplest optimizer."""
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    torch.set_num_threads(1)
    fit = pl.Trainer(
        callbacks=[Clock(), LightningHoldfast()],
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    inputs: Any = torch.randn(4 * STEPS, 8)
    fit.fit(Layer(), torch.utils.data.DataLoader(inputs, batch_size=4))
    return ends


def accelerate() -> list[float]:
    """Run a loop with Accelerate that computes no gradients; return the times at which steps end, in seconds."""
    import torch
    from accelerate import Accelerator

    from holdfast_hooks.frameworks.accelerate import hold

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    layer: Any = torch.nn.Linear(8, 1)
    inputs: Any = torch.randn(4 * STEPS, 8)
    loader: Any = torch.utils.data.DataLoader(inputs, batch_size=4)
    model, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=1e-3), loader)
    held = hold(accelerator)
    loss = torch.ones(())
    ends: list[float] = []
    for _ in held.epochs(1):
        for _ in held.batches(loader):
            with accelerator.accumulate(model):
                optimizer.step()
                optimizer.zero_grad()
            held.hooks.report(loss=loss)
            ends.append(time.perf_counter())
    return ends


def deepspeed() -> list[float]:
    """Make the calls of a DeepSpeed engine, which do nothing; return the times at which steps end, in seconds.

    This and the three loops below compute nothing: what Holdfast adds is then nearly all that a step takes.
    """
    import torch

    from holdfast_hooks.frameworks.deepspeed import watch_engine

    torch.set_num_threads(1)
    loss = torch.ones(())

    class Engine:
        """The part of an engine that Holdfast wraps and reads."""

        training = True
        global_steps = 0

        def forward(self) -> torch.Tensor:
            """Return the loss."""
            return loss

        def backward(self, _loss: torch.Tensor) -> None:
            """Compute no gradients."""

        def step(self) -> None:
            """Count a step."""
            self.global_steps += 1

        def get_global_grad_norm(self) -> float:
            """Return the norm of the gradient."""
            return 1.0

        def get_lr(self) -> list[float]:
            """Return the learning rates."""
            return [1e-3]

    engine = Engine()
    watch_engine(engine)
    ends: list[float] = []
    for _ in range(STEPS):
        engine.backward(engine.forward())
        engine.step()
        ends.append(time.perf_counter())
    return ends


def ray() -> list[float]:
    """Run the loop of a worker of Ray Train, without Ray's processes; return the times at which steps end."""
    from holdfast_hooks.frameworks.ray_train import watch_worker

    ends: list[float] = []
    with watch_worker() as watch:
        ends.extend(time.perf_counter() for _ in watch.batches(range(STEPS)))
    return ends


def megatron() -> list[float]:
    """Call a schedule and an optimizer of Megatron Core that do nothing; return the times at which steps end.

    Megatron's own need a GPU. The calls that Holdfast wraps, and what they return, are those of Megatron-LM.
    """
    import torch
    from megatron.core import parallel_state
    from megatron.core.optimizer import MegatronOptimizer
    from megatron.core.pipeline_parallel import schedules

    from holdfast_hooks.frameworks.megatron import watch_megatron

    torch.set_num_threads(1)
    losses = [{"lm loss": torch.ones(2)}]

    class Plain(MegatronOptimizer):  # type: ignore[misc]
        """An optimizer without parameters."""

        param_groups = ({"lr": 1e-3},)

        def __init__(self) -> None:
            """Leave out what Megatron's optimizers keep: this one needs nothing of it."""

        def step(self) -> tuple[bool, float, None]:
            """Return what Megatron's optimizers return."""
            return True, 1.0, None

    Plain.__abstractmethods__ = frozenset()
    schedules.forward_backward_no_pipelining = lambda **_: losses
    sizes = {"num_microbatches": 1, "micro_batch_size": 4, "seq_length": 8}
    ends: list[float] = []
    with tempfile.NamedTemporaryFile() as meeting:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting.name}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        watch_megatron()
        optimizer = Plain()
        for _ in range(STEPS):
            schedules.forward_backward_no_pipelining(forward_only=False, **sizes)
            optimizer.step()
            ends.append(time.perf_counter())
    return ends


def torchtitan() -> list[float]:
    """Make the calls of torchtitan's Trainer, which do nothing; return the times at which steps end.

    torchtitan's own need a GPU. The calls that Holdfast wraps come in the order in which torchtitan makes them.
    """
    import torch
    from torchtitan.distributed import utils

    from holdfast_hooks.frameworks.torchtitan import watch_trainer

    torch.set_num_threads(1)
    loss, norm = torch.ones(()), torch.ones(())
    utils.clip_grad_norm_ = lambda: norm
    ends: list[float] = []

    class Trainer:
        """The part of torchtitan's Trainer that makes steps."""

        step = 0
        ntokens_seen = 0

        def batch_generator(self, data: Iterable[int]) -> Iterator[int]:
            """Yield the batches."""
            yield from data

        def forward_backward_step(self) -> torch.Tensor:
            """Return the loss."""
            return loss

        def train_step(self, batches: Iterator[int]) -> None:
            """Train a step."""
            next(batches)
            self.forward_backward_step()
            utils.clip_grad_norm_()

        def should_continue_training(self) -> bool:
            """Return whether steps are left."""
            return self.step < STEPS

        def train(self) -> None:
            """Train all steps."""
            batches = self.batch_generator(range(STEPS))
            while self.should_continue_training():
                self.step += 1
                self.train_step(batches)
                ends.append(time.perf_counter())

    trainer = Trainer()
    watch_trainer(trainer)
    trainer.train()
    return ends


LOOPS: dict[str, Callable[[], list[float]]] = {
    "trainer": trainer,
    "accelerate": accelerate,
    "lightning": lightning,
    "deepspeed": deepspeed,
    "ray": ray,
    "megatron": megatron,
    "torchtitan": torchtitan,
}
PACKAGES = {"trainer": "transformers"}
"""Package of a loop whose name is another one."""


def median_step_us(name: str) -> float:
    """Run a loop; return the median microseconds from the end of a step to the end of the next."""
    steps = [after - before for before, after in itertools.pairwise(LOOPS[name]())]
    return statistics.median(steps[WARM_UP_STEPS:]) * 1e6
