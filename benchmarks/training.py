"""Measure what the runtime costs: compare its training step with that of the shortest loop that does the same.

Ranks train under an agent with hooks attached, with ZeRO stage 3 over all of them. Before each step of the runtime,
every rank takes one step of a bare loop without Holdfast. It has the same model, batch size, optimizer and clipping in
plain torch (``fully_shard`` per block, AdamW, ``clip_grad_norm_``). The two take turns, step by step, so whatever slows
the machine slows both. A step of the runtime is everything between two steps of the bare loop: its data, the hooks'
work at the boundary, and its reports. A third loop is plain torch in one process: rank 0 takes a step of the whole
batch on one thread, and the others wait.

The figures are medians over all steps but the first ones. No snapshots are taken: benchmarks/checkpoint.py measures
those. Every tenth step is replayed to find silent corruption, after a snapshot at the end of the step before. These
steps are compared with the others, and the two do not count elsewhere.

    python benchmarks/training.py [--ranks 2] [--steps 120] [--json]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import holdfast_hooks
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import ModeName
from holdfast_hooks import Phase
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import (
    DataConfig,
    DistributedConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainConfig,
)
from holdfast_trainer.data import corpus
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.rank_device import open_device
from holdfast_trainer.train import train

WARMUP_STEPS = 20
CLIP_NORM = 1.0
SEQUENCE = 256
REPLAY_EVERY = 10


def configuration(ranks: int, steps: int) -> TrainerConfig:
    return TrainerConfig(
        model=ModelConfig(dim=256, layers=6, heads=8, kv_heads=4, hidden=704),
        parallel=ParallelConfig(dp=ranks, zero=3),
        data=DataConfig(sequence=SEQUENCE, overlap_ngram=0),
        train=TrainConfig(
            steps=steps, global_batch=4 * ranks, validate_every=0, log_every=10, replay_every=REPLAY_EVERY
        ),
        optimizer=OptimizerConfig(clip_norm=CLIP_NORM),
        distributed=DistributedConfig(device="cpu"),
    )


class BareLoop:
    """The shortest training loop with the same model and arithmetic."""

    def __init__(self, config: TrainerConfig, tokens: Tensor, *, sharded: bool, samples: int) -> None:
        self._tokens, self._samples = tokens, samples
        self._model = make_model(config)
        if sharded:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for block in self._model.layers.values():
                fully_shard(block, mesh=mesh)
            fully_shard(self._model, mesh=mesh)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, fused=True)

    def step(self) -> float:
        """Train on one random batch; return the seconds of the step."""
        started = time.perf_counter()
        starts = torch.randint(len(self._tokens) - SEQUENCE - 1, (self._samples,))
        batch = torch.stack([self._tokens[start : start + SEQUENCE + 1] for start in starts]).long()
        logits = self._model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - started


def make_model(config: TrainerConfig) -> Transformer:
    positions = torch.arange(SEQUENCE)
    model = Transformer(config.model, positions=positions, layers=range(config.model.layers), first=True, last=True)
    model.initialise(torch.device("cpu"), seed=0)
    return model


class TakingTurns:
    """Hooks that run a step of each bare loop before each step of the runtime, and keep every step's seconds."""

    def __init__(self, hooks: holdfast_hooks.Hooks, config: TrainerConfig, tokens: Tensor) -> None:
        share = config.train.global_batch // config.parallel.dp
        self._hooks = hooks
        self._bare = BareLoop(config, tokens, sharded=True, samples=share)
        self._alone = None
        if dist.get_rank() == 0:
            self._alone = BareLoop(config, tokens, sharded=False, samples=config.train.global_batch)
        self.runtime_s: list[float] = []
        self.bare_s: list[float] = []
        self.alone_s: list[float] = []

    def __enter__(self) -> "TakingTurns":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._hooks, name)

    def steps(self, until: int) -> Iterator[int]:
        """Yield the runtime's steps, each after a step of the bare loops."""
        begun = 0.0
        for step in self._hooks.steps(until=until):
            if begun:
                self.runtime_s.append(time.perf_counter() - begun)
            self._hooks.enter(Phase.EVAL)
            if self._alone is not None:
                self.alone_s.append(self._alone.step())
            dist.barrier()
            self.bare_s.append(self._bare.step())
            dist.barrier()
            begun = time.perf_counter()
            yield step
        self.runtime_s.append(time.perf_counter() - begun)


def train_in_turns(ranks: int, steps: int, output: Path) -> None:
    """Train as one rank. Rank 0 writes the seconds of its steps to ``output``."""
    config = configuration(ranks, steps)
    text = corpus.prepare(config.data, vocabulary=config.model.vocabulary)
    tokens = torch.from_numpy(text.train.map().copy())
    attach = holdfast_hooks.attach
    turns: list[TakingTurns] = []

    def attach_taking_turns(**arguments: Any) -> TakingTurns:
        turns.append(TakingTurns(attach(**arguments), config, tokens))
        return turns[0]

    holdfast_hooks.attach = attach_taking_turns  # type: ignore[assignment]
    train(config, text, open_device("cpu"))
    if turns[0].alone_s:
        seconds = {"runtime": turns[0].runtime_s, "bare": turns[0].bare_s, "alone": turns[0].alone_s}
        output.write_text(json.dumps(seconds))


def measure(ranks: int, steps: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        output = Path(folder) / "seconds.json"
        own_arguments = ["--ranks", str(ranks), "--steps", str(steps), "--rank-output", str(output)]
        options = LocalRunOptions(
            run="bench",
            command=("python", str(Path(__file__).resolve()), *own_arguments),
            ranks=ranks,
            directory=Path(folder),
            snapshot_every=0,
            checkpoint_every=0,
            mode=ModeName.OBSERVE,
        )
        with LocalRun(options) as local:
            local.wait()
        seconds = json.loads(output.read_text())
    tokens = configuration(ranks, steps).train.global_batch * SEQUENCE
    counted = range(WARMUP_STEPS, steps)
    replayed = [step for step in counted if step % REPLAY_EVERY == 0]
    plain = [step for step in counted if step not in replayed and step + 1 not in replayed]
    median_s = {name: statistics.median(taken[step] for step in plain) for name, taken in seconds.items()}
    ratios = [ours / bare for ours, bare in zip(seconds["runtime"], seconds["bare"], strict=True)]
    usual = statistics.median(ratios[step] for step in plain)
    return {
        "tokens_per_s": round(tokens / median_s["runtime"]),
        "bare_loop_tokens_per_s": round(tokens / median_s["bare"]),
        "plain_process_tokens_per_s": round(tokens / median_s["alone"]),
        "overhead_ratio": round(usual - 1, 4),
        "replay_steps": round(statistics.median(ratios[step] for step in replayed) / usual - 1, 2),
        "ranks": ranks,
        "steps": len(plain),
        "parameters": sum(parameter.numel() for parameter in make_model(configuration(ranks, steps)).parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="steps of each loop (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rank-output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps <= WARMUP_STEPS:
        sys.exit(f"--steps {arguments.steps}: the first {WARMUP_STEPS} are not counted, so take more")
    if arguments.rank_output:
        train_in_turns(arguments.ranks, arguments.steps, arguments.rank_output)
        return
    result = measure(arguments.ranks, arguments.steps)
    table = Table("", "tokens/s", title=f"One model, {arguments.ranks} ranks")
    table.add_row("Holdfast's runtime, hooks attached", f"{result['tokens_per_s']:,}")
    table.add_row("bare fully_shard loop", f"{result['bare_loop_tokens_per_s']:,}")
    table.add_row("plain torch, one process, one thread", f"{result['plain_process_tokens_per_s']:,}")
    overhead = f"the runtime's step takes {result['overhead_ratio']:+.1%}"
    replay = f"a replay takes the time of {result['replay_steps']} more steps"
    Console(stderr=arguments.json).print(table, overhead, replay, sep="\n")
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
