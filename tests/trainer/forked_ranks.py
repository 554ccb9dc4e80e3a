"""A warm parent for tests: forks worlds of ranks on request, so that torch is imported once.

Run as a module. Each line on stdin is ``{"case": name, "ranks": n, "folder": path, "configs": [{...}]}``; the
reply on stdout is a line ``{"ok": bool, "output": text}``.
"""

import copy
import functools
import hashlib
import json
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import holdfast_hooks
import holdfast_trainer.preload  # noqa: F401
from holdfast_trainer.config import TrainerConfig, resized
from holdfast_trainer.data import corpus
from holdfast_trainer.parallel import mesh
from holdfast_trainer.rank_device import open_device
from holdfast_trainer.train import train
from tests.trainer.collective_counts import print_collectives
from tests.trainer.number_cases import check_fp8, check_memory_options, check_overflow
from tests.trainer.parity import check_layout
from tests.trainer.replayed_ranks import check_replayed
from tests.trainer.watched_ranks import check_watched

PASSED = "passed"
TIMEOUT = timedelta(seconds=60)
"""Seconds after which a rank that waits for its peers gives up."""


@dataclass(frozen=True)
class World:
    """The place of a forked rank."""

    rank: int
    ranks: int
    folder: Path
    generation: str
    """Name of the world, different for each world of the same folder."""


def sweep(check: Callable[[TrainerConfig], None], world: World, *configs: TrainerConfig) -> None:
    """Check one layout after the other. Rank 0 prints a line for each that all ranks found right."""
    # Layouts with equal meshes share them. New process groups for each layout would be too many.
    mesh._init = functools.cache(mesh._init)
    join(world)
    for config in configs:
        check(config)
        dist.barrier()
        if world.rank == 0:
            print(PASSED, flush=True)
    dist.destroy_process_group()


def join(world: World) -> None:
    store = dist.FileStore(str(world.folder / f"store-{world.generation}"), world.ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.ranks, timeout=TIMEOUT)


class RecordingHooks:
    """Hooks that record the calls of the loop, and start it from ``saved`` at ``start``."""

    def __init__(self, *, start: int = 0, saved: dict[str, Any] | None = None, save_after: int = -1) -> None:
        self.calls: list[str] = []
        self.saved = saved
        self._start = start
        self._save_after = save_after

    def attach(
        self,
        *,
        state: dict[str, Any],
        coordinates: dict[str, int],
        device: str,
        check_data_position: bool,
        data_by_step: bool,
        replica_ranks: int | None,
    ) -> "RecordingHooks":
        if check_data_position or not data_by_step:
            raise ValueError("the trainer's batches follow from a number: the check for a position is noise")
        self.calls.append(f"attach {sorted(state)} {coordinates} {device} {replica_ranks}")
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

    def data_of(self, step: int) -> int:
        return step

    def enter(self, phase: holdfast_hooks.Phase) -> None:
        self.calls.append(phase.name)

    def watch_gradients(self, modules: dict[str, torch.nn.Module], *, then: str | None) -> None:
        self.calls.append(f"watch {sorted(modules)} {then}")

    def should_update(self, grad_norm: torch.Tensor) -> bool:
        self.calls.append("should_update")
        return bool(grad_norm.isfinite())

    def replay(self, function: Callable[[], Any], *, every: int) -> Any:
        return function()

    def report(self, **values: object) -> None:
        reported = sorted(name for name, value in values.items() if value is not None)
        self.calls.append(f"report {reported}")


def trained(config: TrainerConfig, hooks: RecordingHooks) -> str:
    """Train as one process; return the bits of the weights at the end."""
    holdfast_hooks.attach = hooks.attach  # type: ignore[assignment]
    device = open_device("cpu")
    parts = train(config, corpus.prepare(config.data, vocabulary=config.model.vocabulary), device)
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in parts.named_parameters():
        assert isinstance(parameter, DTensor)
        digest.update(name.encode() + bytes(parameter.to_local().detach().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def calls(world: World, config: TrainerConfig) -> None:
    """Train, and print the calls of the hooks."""
    hooks = RecordingHooks()
    trained(config, hooks)
    print(*hooks.calls, sep="\n")


def digests(world: World, config: TrainerConfig) -> None:
    """Print the final weights of two undisturbed runs, and of one that continues where the first one was saved."""
    first = RecordingHooks(save_after=2)
    print("undisturbed", trained(config, first))
    print("undisturbed", trained(config, RecordingHooks()))
    print("resumed", trained(config, RecordingHooks(start=3, saved=first.saved)))


def check_resized(config: TrainerConfig) -> None:
    """Check the layout of ``config`` with as many replicas as this world has."""
    check_layout(resized(config, dist.get_world_size()))


def imports(world: World, config: TrainerConfig) -> None:
    """Train, and print the modules that had not been imported before the fork."""
    before = set(sys.modules)
    trained(config, RecordingHooks())
    print(*(set(sys.modules) - before))


CASES: dict[str, Callable[..., None]] = {
    "sweep": functools.partial(sweep, check_layout),
    "resized": functools.partial(sweep, check_resized),
    "overflow": functools.partial(sweep, check_overflow),
    "memory": functools.partial(sweep, check_memory_options),
    "replayed": functools.partial(sweep, check_replayed),
    "watched": functools.partial(sweep, check_watched),
    "fp8": functools.partial(sweep, check_fp8),
    "collectives": functools.partial(sweep, print_collectives),
    "calls": calls,
    "digests": digests,
    "imports": imports,
}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(run_world(**request)), flush=True)


def run_world(case: str, ranks: int, folder: str, configs: list[dict[str, Any]]) -> dict[str, Any]:
    generation = uuid.uuid4().hex
    output = Path(folder, f"output-{generation}.txt")
    worlds = [World(rank, ranks, Path(folder), generation) for rank in range(ranks)]
    pids = {start_rank(case, world, configs, output) for world in worlds}
    ok = True
    while pids:
        pid, status = os.waitpid(-1, 0)
        pids.discard(pid)
        if status and ok:
            ok = False
            for peer in pids:
                os.kill(peer, signal.SIGKILL)
    return {"ok": ok, "output": output.read_text()}


def start_rank(case: str, world: World, configs: list[dict[str, Any]], output: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        torch.set_num_threads(1)
        CASES[case](world, *(TrainerConfig(**config) for config in configs))
        sys.stdout.flush()
        status = 0
    except BaseException:  # noqa: BLE001 (a rank must end here, after any error)
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
