"""A warm parent for tests: forks worlds of ranks on request, so that torch is imported once.

Run as a script. Each line on stdin is ``{"case": name, "ranks": n, "folder": path, "config": {...}}``; the
reply on stdout is a line ``{"ok": bool, "output": text}``.
"""

import copy
import hashlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

import holdfast_hooks
import holdfast_trainer.preload  # noqa: F401
from holdfast_trainer import corpus
from holdfast_trainer.batches import Batches
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.device import open_device
from holdfast_trainer.evaluate import validation_loss
from holdfast_trainer.mesh import Mesh
from holdfast_trainer.model import Transformer
from holdfast_trainer.optimizer import clip_gradient
from holdfast_trainer.parallelize import parallelize
from holdfast_trainer.pipeline import MeanLoss, make_runner
from holdfast_trainer.train import train

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """Who a forked rank is."""

    rank: int
    ranks: int
    folder: Path


def parity(world: World, config: TrainerConfig) -> None:
    """Weights, loss, gradient, norm, clipping and validation of this layout are those of one plain process."""
    text = corpus.prepare(config.data)
    store = dist.FileStore(str(world.folder / "store"), world.ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.ranks)
    mesh = Mesh.create(config.parallel, "cpu")
    model = parallelize(config, mesh, CPU)
    runner = make_runner(config, mesh, model, CPU)
    batches = Batches(config, text, dp_index=mesh.index("dp"), device=CPU)

    plain, plain_losses, plain_gradients = plain_run(config, text)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.full_tensor(), plain.get_parameter(name), rtol=0, atol=0, msg=name)
    before = validation_loss(runner, batches, count=config.train.validation_batches)
    losses = [runner.forward_backward(batches.training(step)) for step in range(2)]
    after = validation_loss(runner, batches, count=config.train.validation_batches)
    expect_close(model, plain_gradients, factor=1.0)
    norm = clip_gradient(model.parameters(), mesh, clip_norm=0.1)
    plain_norm = get_total_norm(list(plain_gradients.values()))
    torch.testing.assert_close(norm, plain_norm, rtol=1e-5, atol=0)
    assert norm > 0.1
    expect_close(model, plain_gradients, factor=0.1 / float(plain_norm))

    if mesh.is_last_stage:
        known = [loss for loss in (before, *losses, after) if loss is not None]
        torch.testing.assert_close(torch.stack(known), plain_losses, rtol=1e-5, atol=0)
    else:
        assert [before, *losses, after] == [None] * 4
    if mesh.is_reporter:
        print("one reporter")
    dist.destroy_process_group()


def plain_run(config: TrainerConfig, text: corpus.Corpus) -> tuple[Transformer, torch.Tensor, dict[str, torch.Tensor]]:
    """The same with autograd alone: model, losses as in :func:`parity`, gradients of two batches."""
    whole = config.model_copy(update={"parallel": config.parallel.model_copy(update={"dp": 1})})
    batches = Batches(whole, text, dp_index=0, device=CPU)
    model = Transformer(
        config.model, sequence=config.data.sequence, layers=range(config.model.layers), first=True, last=True
    )
    model.initialise(CPU, seed=config.train.seed)
    loss_function = MeanLoss(config)
    losses = []
    for step in range(2):
        batch = batches.training(step)
        loss = loss_function(model(batch.inputs), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    held_out = [batches.validation(index) for index in range(config.train.validation_batches)]
    with torch.no_grad():
        validation = torch.stack([loss_function(model(batch.inputs), batch.targets) for batch in held_out]).mean()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return model, torch.stack([validation, *losses, validation]), gradients


def expect_close(model: Transformer, expected: dict[str, torch.Tensor], *, factor: float) -> None:
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        whole = parameter.grad.full_tensor()
        wanted = expected[name] * factor
        torch.testing.assert_close(
            whole,
            wanted,
            rtol=1e-5,
            atol=1e-6 * float(wanted.abs().max()),
            msg=f"gradient of {name}: {whole} instead of {wanted}",
        )


class RecordingHooks:
    """Hooks that keep what the loop tells them, and start it from ``saved`` at ``start``."""

    def __init__(self, *, start: int = 0, saved: dict[str, Any] | None = None, save_after: int = -1) -> None:
        self.calls: list[str] = []
        self.saved = saved
        self._start = start
        self._save_after = save_after

    def attach(self, *, state: dict[str, Any], coordinates: dict[str, int], device: str) -> "RecordingHooks":
        self.calls.append(f"attach {sorted(state)} {coordinates} {device}")
        self._state = state
        return self

    def __enter__(self) -> "RecordingHooks":
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("exit")

    def steps(self, until: int) -> Iterator[int]:
        if self.saved is not None:
            for name, part in self._state.items():
                part.load_state_dict(self.saved[name])
        for step in range(self._start, until):
            self.calls.append(f"step {step}")
            yield step
            if step == self._save_after:
                self.saved = copy.deepcopy({name: part.state_dict() for name, part in self._state.items()})

    def enter(self, phase: holdfast_hooks.Phase) -> None:
        self.calls.append(phase.name)

    def report(self, **values: object) -> None:
        self.calls.append(f"report {sorted(values)}")


def trained(config: TrainerConfig, hooks: RecordingHooks) -> str:
    """Train as one process; return the bits of the weights at the end."""
    holdfast_hooks.attach = hooks.attach  # type: ignore[assignment]
    device = open_device("cpu")
    model = train(config, corpus.prepare(config.data), device)
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        digest.update(name.encode() + bytes(parameter.to_local().detach().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def calls(world: World, config: TrainerConfig) -> None:
    """Train, and print what the hooks were told."""
    hooks = RecordingHooks()
    trained(config, hooks)
    print(*hooks.calls, sep="\n")


def digests(world: World, config: TrainerConfig) -> None:
    """Print the weights at the end of two undisturbed runs, and of one that goes on where the first one was saved."""
    first = RecordingHooks(save_after=2)
    print("undisturbed", trained(config, first))
    print("undisturbed", trained(config, RecordingHooks()))
    print("resumed", trained(config, RecordingHooks(start=3, saved=first.saved)))


def imports(world: World, config: TrainerConfig) -> None:
    """Train, and print the modules that had not been imported before the fork."""
    before = set(sys.modules)
    trained(config, RecordingHooks())
    print(*(set(sys.modules) - before))


CASES = {"parity": parity, "calls": calls, "digests": digests, "imports": imports}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(run_world(**request)), flush=True)


def run_world(case: str, ranks: int, folder: str, config: dict[str, Any]) -> dict[str, Any]:
    output = Path(folder, "output.txt")
    pids = {start_rank(case, World(rank, ranks, Path(folder)), config, output) for rank in range(ranks)}
    ok = True
    while pids:
        pid, status = os.waitpid(-1, 0)
        pids.discard(pid)
        if status and ok:
            ok = False
            for peer in pids:
                os.kill(peer, signal.SIGKILL)
    return {"ok": ok, "output": output.read_text()}


def start_rank(case: str, world: World, config: dict[str, Any], output: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        torch.set_num_threads(1)
        CASES[case](world, TrainerConfig(**config))
        sys.stdout.flush()
        status = 0
    except BaseException:  # noqa: BLE001 (a rank must end here, whatever ends it)
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
