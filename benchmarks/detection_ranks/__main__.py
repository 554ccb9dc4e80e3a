"""One rank: ``python -m detection_ranks LAYOUT``. A step takes about 60 ms. Most of it is waiting, as for a device."""

import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast_hooks
from holdfast_hooks import Phase
from holdfast_proto.rank_context import RankContext

from .call_log import CallLog, log_path
from .groups import Groups
from .model import BATCH, DIM, Stage
from .tasks import FIRST_STEP_VARIABLE, FOLDER_VARIABLE, Task, Tasks

MICROBATCHES = 2
COMPUTE_S = 0.004
DEVICE_S = 0.015
DATA_S = 0.004
STEPS = 10**9
_REPEATED_STEPS = 4


class Training:
    """The steps of one rank."""

    def __init__(self, groups: Groups, stage: Stage, hooks: holdfast_hooks.Hooks, log: CallLog) -> None:
        self._groups = groups
        self._stage = stage
        self._hooks = hooks
        self._log = log
        self._place, self._last = groups.index["pp"], groups.sizes["pp"] - 1

    def enter(self, phase: Phase) -> None:
        """Enter another phase."""
        self._log.mark()
        self._hooks.enter(phase)
        self._log.mark()

    def step(self, step: int, task: Task) -> None:
        """Train one step."""
        self.enter(Phase.DATA)
        sampled = step - _REPEATED_STEPS if task.what == "duplicate" else step
        batches = [self._batch(sampled, number) for number in range(MICROBATCHES)]
        self.enter(Phase.FORWARD_BACKWARD)
        loss = self._forward_backward(batches)
        gathered = self._groups.reduce_scatter("dp", self._flat_gradient())
        self.enter(Phase.OPTIMIZER)
        norm = self._optimize(gathered)
        self._hooks.report(loss=loss, grad_norm=norm, tokens=BATCH, samples=self._fingerprint(sampled))
        if task.what in ("eval", "checkpoint"):
            self.enter(Phase[task.what.upper()])
            time.sleep(task.seconds)

    def _batch(self, step: int, number: int) -> torch.Tensor:
        time.sleep(DATA_S)
        seed = (step * MICROBATCHES + number) * 64 + self._groups.index["dp"]
        return torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(seed))

    def _fingerprint(self, step: int) -> bytes:
        return step.to_bytes(6, "little") + self._groups.index["dp"].to_bytes(2, "little")

    def _forward_backward(self, batches: list[torch.Tensor]) -> float:
        """Run all microbatches forward, then all backward; return the mean loss."""
        self._stage.zero_grad()
        passes = [self._forward(batch) for batch in batches]
        time.sleep(DEVICE_S)
        losses = [self._backward(inputs, outputs) for inputs, outputs in passes]
        total = self._groups.all_reduce("world", torch.tensor([sum(losses), float(len(losses))]))
        return float(total[0] / total[1])

    def _forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = batch if self._place == 0 else self._groups.receive("pp", (BATCH, DIM), self._place - 1)
        inputs.requires_grad_()
        _compute(COMPUTE_S)
        outputs = self._stage(inputs)
        if self._place < self._last:
            self._groups.send("pp", outputs.detach(), self._place + 1)
        return inputs, outputs

    def _backward(self, inputs: torch.Tensor, outputs: torch.Tensor) -> float:
        if self._place == self._last:
            loss = (outputs - 0.5).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            loss = torch.zeros(())
            outputs.backward(self._groups.receive("pp", (BATCH, DIM), self._place + 1))  # type: ignore[no-untyped-call]
        if self._place:
            assert inputs.grad is not None
            self._groups.send("pp", inputs.grad, self._place - 1)
        return loss.item()

    def _flat_gradient(self) -> torch.Tensor:
        return torch.cat([layer.gradient.flatten() for layer in self._stage.own_layers()])

    def _optimize(self, part: torch.Tensor) -> float:
        """Take a step of gradient descent if the gradient's norm is finite; return the norm."""
        gradient = self._groups.all_gather("dp", part) / self._groups.sizes["dp"]
        norm = self._groups.all_reduce("world", gradient.square().sum()).sqrt().item()
        for layer, summed in zip(self._stage.own_layers(), gradient.view(-1, DIM, DIM), strict=True):
            layer.gradient.copy_(summed)
        if math.isfinite(norm):
            self._stage.descend()
        return norm


def _compute(for_s: float) -> None:
    deadline_s = time.thread_time() + for_s
    while time.thread_time() < deadline_s:
        pass


def main(layout: str) -> None:
    """Train until all steps are done or the run ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    context = RankContext.from_environment(rank=rank)
    assert context is not None, "start this under an agent"
    folder = Path(os.environ[FOLDER_VARIABLE])
    log = CallLog(log_path(folder, context.generation, rank))
    groups, tasks = Groups(layout, log), Tasks(folder, rank)
    stage = Stage(groups)
    first_step_s = float(os.environ.get(FIRST_STEP_VARIABLE, "0"))
    with holdfast_hooks.attach(state={"model": stage}, coordinates=groups.index) as hooks:
        last = groups.index["pp"] == groups.sizes["pp"] - 1
        hooks.watch_gradients(
            {f"layers.{number}": layer for number, layer in enumerate(stage.layers)}, then="loss" if last else None
        )
        training = Training(groups, stage, hooks, log)
        for count, step in enumerate(hooks.steps(until=STEPS)):
            if count == 0:
                for layer in stage.own_layers():
                    layer.reset()  # a case of an earlier generation may have corrupted the weights
                time.sleep(first_step_s)
            training.step(step, tasks.of(step))


if __name__ == "__main__":
    main(sys.argv[1])
