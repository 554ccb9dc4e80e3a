"""Measure what checkpoints cost a training run, compared with torch's async_save, torch.save, plain zstd and ZipNN.

Trains the reference trainer's byte-level transformer in this process, on all cores. Its state is laid out as in large
models: bf16 weights, fp32 master weights and Adam's two moments, 14 bytes per parameter. All contenders get this one
state, round by round, so that other load on the machine affects them alike. Each figure is the median of the rounds:

* memcpy: torch's ``copy_`` of all tensors into memory that was written before.
* stall: the time that the training thread waits for a snapshot through the hooks, or until ``async_save`` or
  ``torch.save`` returns. A training step runs between any two of these, so that nothing is in place or cached already.
* slowdown: a checkpoint begins, and training continues until it is durable. The slowdown is the time beyond that of
  as many steps without a checkpoint. These are measured just before and just after, once for each of ``--threads``.
  An agent's workers write Holdfast's checkpoint in processes of their own. ``ratio`` is raw over stored bytes of the
  last one, because workers that get no cores do not compress. Holdfast flushes what it writes and reads it back;
  ``async_save`` does neither.
* load from memory: a rank restores from a slot into a new model and optimizer, as after a restart. The peer is plain
  copies into memory that is as new.
* load from the disk: a worker verifies a shard and unpacks it into a slot. The peer is reading the file into the same
  slot. Both start with a cold page cache.
* extra memory: all slots and the peak of the workers' own memory, compared with two copies of the state.
* ratio: raw over stored bytes. ``delta`` cases code the difference to the state ``--apart`` steps before.

``async_save`` has two stagers, the default one and the one in shared memory. For each figure the better one counts.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.checkpoint_costs import codecs as state_codecs
from benchmarks.checkpoint_costs.loading import DiskLoads, memory_copy_s, memory_load_s
from benchmarks.checkpoint_costs.training_loop import Training
from benchmarks.checkpoint_costs.writers import AsyncSave, Holdfast, TorchSave, Writer
from holdfast_trainer import config
from holdfast_trainer.data import corpus

Samples = dict[str, list[float]]

_LARGE = ["--model.dim", "512", "--model.hidden", "1536", "--model.layers", "10", "--model.heads", "8"]
_SMALL = ["--model.dim", "256", "--model.hidden", "768", "--model.layers", "4"]
_DCP = ("dcp_default", "dcp_shared_memory")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="take a tenth of the state and few steps, as a test")
    parser.add_argument("--steps", type=int, help="number of steps to train (default 500, quick 30)")
    parser.add_argument("--apart", type=int, help="steps between the states of the delta cases (default 50, quick 5)")
    parser.add_argument("--rounds", type=int, help="number of rounds (default 7, quick 2)")
    parser.add_argument("--folder", type=Path, help="folder for the files (default: a temporary one)")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[torch.get_num_threads(), 1],
        help="cores that train, for each slowdown (default: all, then one); the writers get the others",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads[0])
    quick: bool = arguments.quick
    steps = arguments.steps or (30 if quick else 500)
    apart = arguments.apart or (5 if quick else 50)
    rounds = arguments.rounds or (2 if quick else 7)
    new_training = maker(_SMALL if quick else _LARGE, steps=steps)
    training = new_training()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=arguments.folder) as folder:
        found = measure(
            training, new_training, Path(folder), steps=steps, apart=apart, rounds=rounds, threads=arguments.threads
        )
    show(found)
    if arguments.json:
        print(json.dumps(found))
    return 0


def maker(flags: list[str], *, steps: int) -> Callable[[], Training]:
    settings = config.load(flags, world_size=1)
    text = corpus.prepare(settings.data, vocabulary=settings.model.vocabulary)
    return lambda: Training(settings.model, text, steps=steps, batch=4)


def measure(
    training: Training,
    new_training: Callable[[], Training],
    folder: Path,
    *,
    steps: int,
    apart: int,
    rounds: int,
    threads: list[int],
) -> dict[str, Any]:
    for _ in range(steps - apart):
        training.step()
    before = training.kinds()
    for _ in range(apart):
        training.step()
    cases = state_codecs.make_cases(before, training.kinds())
    state_bytes = sum(tensor.nbytes for tensor in training.tensors())
    found: dict[str, Any] = {"state_bytes": state_bytes, "steps": steps, "loss": round(training.losses[-1], 3)}
    codecs = state_codecs.measure_all(cases, rounds=min(rounds, 3))
    del before, cases
    with Holdfast(folder, training.state) as ours:
        writers: dict[str, Writer] = {
            "holdfast": ours,
            "dcp_default": AsyncSave(folder, training.state, shared_memory=False),
            "dcp_shared_memory": AsyncSave(folder, training.state, shared_memory=True),
            "torch_save": TorchSave(folder, training.state),
        }
        found |= stalls(training, writers, ours, rounds=rounds)
        found["slowdowns"] = {}
        for number in threads:
            torch.set_num_threads(number)
            found["slowdowns"][number] = slowdowns(training, writers, rounds=rounds) | {"ratio": ours.last_ratio()}
        torch.set_num_threads(threads[0])
        found |= writing(ours, state_bytes)
        found |= loads(training.tensors(), new_training, ours, rounds=rounds)
    return headline(found) | found | compression(codecs)


def stalls(training: Training, writers: dict[str, Writer], ours: Holdfast, *, rounds: int) -> dict[str, Any]:
    """Measure how long the training thread waits."""
    tensors = training.tensors()
    places = [tensor.clone() for tensor in tensors]

    def copy() -> None:
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)

    samples: Samples = {}
    actions: dict[str, Callable[[], Any]] = {"memcpy": copy, "holdfast": ours.snapshot}
    first_s = timed(ours.snapshot)
    for _ in range(rounds):
        for name, action in actions.items():
            training.step()
            samples.setdefault(name, []).append(timed(action))
        for name, writer in writers.items():
            if writer is not ours:
                training.step()
                samples.setdefault(name, []).append(timed(writer.begin))
                writer.finish()
    return {"first_stall_s": first_s, "stalls_s": medians(samples)}


def slowdowns(training: Training, writers: dict[str, Writer], *, rounds: int) -> dict[str, Any]:
    """Measure what a checkpoint costs the training loop until it is durable, with its present number of threads."""
    extra: Samples = {}
    until_durable: Samples = {}
    for _ in range(rounds):
        for name, writer in writers.items():
            extra_s, durable_s = slowdown(training, writer)
            extra.setdefault(name, []).append(extra_s)
            until_durable.setdefault(name, []).append(durable_s)
    return {"slowdowns_s": medians(extra), "durable_s": medians(until_durable)} | slowdown_headline(medians(extra))


def slowdown_headline(slowdowns_s: dict[str, float]) -> dict[str, Any]:
    """Return our figures, and those of the better stager of async_save."""
    peer = min(_DCP, key=slowdowns_s.__getitem__)
    return {"slowdown_s": slowdowns_s["holdfast"], "dcp_slowdown_s": slowdowns_s[peer], "dcp_stager": peer}


def slowdown(training: Training, writer: Writer, *, around: int = 8) -> tuple[float, float]:
    """Return the seconds by which a checkpoint delays training, and those until it is durable."""
    plain_s = [timed(training.step) for _ in range(around)]
    start_s = time.perf_counter()
    writer.begin()
    steps = 0
    while steps < around or not writer.is_done():
        training.step()
        steps += 1
    duration_s = time.perf_counter() - start_s
    writer.finish()
    plain_s += [timed(training.step) for _ in range(around)]
    # A sum is compared with the mean. The median of times with a tail is shorter, and puts the slowest writer
    # at a disadvantage.
    return duration_s - steps * statistics.mean(plain_s), duration_s


def writing(ours: Holdfast, state_bytes: int) -> dict[str, Any]:
    """Measure the memory that a checkpoint needs in addition to the state, and the workers' CPU time."""
    before_s = ours.worker_cpu_s()
    slots_bytes, workers_bytes = len(ours.agent.slots) * ours.slot_bytes, ours.peak_worker_bytes()
    return {
        "writer_cpu_s_per_gb": (ours.worker_cpu_s() - before_s) / (state_bytes / 1e9),
        "slots_bytes": slots_bytes,
        "workers_bytes": workers_bytes,
        "extra_memory_ratio": (slots_bytes + workers_bytes) / (2 * ours.slot_bytes),
    }


def loads(
    tensors: list[torch.Tensor], new_training: Callable[[], Training], ours: Holdfast, *, rounds: int
) -> dict[str, Any]:
    """Measure loading from memory and from the disk."""
    taken = ours.snapshot()
    assert taken is not None
    slot = ours.agent.slots[taken.slot]
    samples: Samples = {"copy": [], "memory": [], "disk": [], "read": []}
    with DiskLoads(ours.directory, slot.with_name("restored")) as disk:
        for _ in range(rounds):
            samples["copy"].append(memory_copy_s(tensors, new_training().tensors()))
            samples["memory"].append(memory_load_s(slot, new_training().state))
            samples["disk"].append(disk.load_s())
            samples["read"].append(disk.read_s())
    found = medians(samples)
    return {
        "loads_s": found,
        "load_memory_ratio": found["copy"] / found["memory"],
        "load_disk_ratio": found["read"] / found["disk"],
    }


def compression(codecs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the codecs. Those of ZipNN are ``missing`` if it is not installed."""
    return {
        "ratio": {case: by_codec["holdfast"]["ratio"] for case, by_codec in codecs.items()},
        "zstd": {case: by_codec["zstd_1"] for case, by_codec in codecs.items() if "zstd_1" in by_codec},
        "zipnn": {case: by_codec["zipnn"] for case, by_codec in codecs.items() if "zipnn" in by_codec},
        "codec": {case: by_codec["holdfast"] for case, by_codec in codecs.items()},
        "mb_per_s_core": codecs["adam"]["holdfast"]["encode_mb_s"],
    }


def headline(found: dict[str, Any]) -> dict[str, Any]:
    """Return our figures, and those of the better stager of async_save."""
    stalls_s = found["stalls_s"]
    stall_peer = min(_DCP, key=stalls_s.__getitem__)
    slowdown_of_all = next(iter(found["slowdowns"].values()))
    return {
        "memcpy_s": stalls_s["memcpy"],
        "stall_s": stalls_s["holdfast"],
        "stall_ratio": stalls_s["holdfast"] / stalls_s["memcpy"],
        "slowdown_s": slowdown_of_all["slowdown_s"],
        "dcp": {
            "stall_s": stalls_s[stall_peer],
            "stall_stager": stall_peer,
            "slowdown_s": slowdown_of_all["dcp_slowdown_s"],
            "slowdown_stager": slowdown_of_all["dcp_stager"],
        },
    }


def medians(samples: Samples) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in samples.items()}


def timed(action: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def show(found: dict[str, Any]) -> None:
    dcp, memcpy_s = found["dcp"], found["memcpy_s"]
    table = Table(title=f"Checkpoints of a state of {found['state_bytes'] / 1e6:.0f} MB")
    for heading in ("", "found", "wanted", "async_save"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("stall / memory copy", f"{found['stall_ratio']:.2f}", "<= 1.2", f"{dcp['stall_s'] / memcpy_s:.2f}")
    table.add_row("stall (s)", f"{found['stall_s']:.3f}", "", f"{dcp['stall_s']:.3f} {dcp['stall_stager']}")
    for threads, slowed in found["slowdowns"].items():
        limit, peer = f"<= {slowed['dcp_slowdown_s'] / 3:.2f}", f"{slowed['dcp_slowdown_s']:.2f} {slowed['dcp_stager']}"
        table.add_row(f"slowdown, {threads} threads train (s)", f"{slowed['slowdown_s']:.2f}", limit, peer)
        table.add_row("  raw / stored bytes written then", f"{slowed['ratio']:.2f}", "", "1")
    table.add_row("CPU time of the writers (s/GB)", f"{found['writer_cpu_s_per_gb']:.2f}", "", "")
    table.add_row("load from memory / memory copy", f"{found['load_memory_ratio']:.2f}", ">= 0.8", "")
    table.add_row("load from disk / reading", f"{found['load_disk_ratio']:.2f}", ">= 0.8", "")
    table.add_row("extra memory / two copies", f"{found['extra_memory_ratio']:.2f}", "<= 1.1", "")
    for case, figures in found["codec"].items():
        table.add_row(f"raw / stored: {case}", f"{figures['ratio']:.3f}", "", "")
    table.add_row("MB/s of a core", str(found["mb_per_s_core"]), "", "")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
