"""What a fault costs a large job: figures of our own benchmarks, and published ones of what they cannot show."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.goodput_month.month import JobCosts

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("measured.json")
RECOVERY, CHECKPOINT, CONTROL_PLANE, HOOKS = (
    "recovery.py --torchrun",
    "checkpoint.py --quick",
    "control_plane.py --ranks 1000 10000 100000",
    "hook_overhead.py",
)
BENCHMARKS = (RECOVERY, CHECKPOINT, CONTROL_PLANE, HOOKS)

CRASH, HANG, HARDWARE = "crash", "hang", "hardware"
CAUSES = {
    # Llama Team, "The Llama 3 Herd of Models", 2024, table 5: unexpected interruptions in 54 days on 16,384 GPUs.
    CRASH: {"software bug": 54, "dependency": 2},
    HANG: {"network switch or cable": 35, "NCCL watchdog timeout": 7},
    HARDWARE: {
        "faulty GPU": 148,
        "GPU HBM3 memory": 72,
        "host maintenance": 32,
        "GPU SRAM memory": 19,
        "GPU system processor": 17,
        "NIC": 7,
        "silent data corruption": 6,
        "GPU thermal interface and sensor": 6,
        "SSD": 3,
        "power supply": 3,
        "server chassis": 2,
        "IO expansion board": 2,
        "CPU": 2,
        "system memory": 2,
    },
}
SHARES = {kind: sum(causes.values()) / 419 for kind, causes in CAUSES.items()}
RANK_S_TO_FAILURE = 54 * 86_400 * 16_384 / 419
"""Rank-seconds of wall time for each interruption, of the same run."""

COMMUNICATORS_S_PER_RANK = 2.8e-3
"""Start of all communicators. Under 30 s on more than 10,000 GPUs (Jiang et al., "MegaScale", NSDI 2024), and 265 s on
96,000 (Si et al., "Collective Communication for 100k+ GPUs", 2025): 3.0 and 2.8 ms for each."""
NCCL_TIMEOUT_S = 600.0
"""Time after which torch's watchdog ends a job that hangs on NCCL, unless a script sets another."""
LIKELY_S = 60.0
"""Standstill with a likely sign before a restart, at the default preset: docs/detectors.md."""
LATE_S, LATE_STEPS = 5.0, 3.0
"""Deadline of a rank at the default preset, and the same in steps: a lost node that closes no connection is late."""
CHECK_S = 40.0
"""Longest wait for the check of a node before its ranks start again: docs/nodes.md."""
SNAPSHOT_EVERY_STEPS, REPLICATE_EVERY_S, REPLICA_BYTES_PER_S = 10, 10.0, 250e6
"""Defaults of `holdfast publish`."""
CHECKPOINT_EVERY_S = 900.0
"""Time between the checkpoints that Holdfast writes to the disk, as often as the better of its peers."""
RANKS_PER_NODE = 8
BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and Adam's two moments. All ranks share them."""

NOTICE, CHECK, START, COMMUNICATORS, LOAD = "noticing", "check of the node", "start", "communicators", "loading"
HOLDFAST = "Holdfast"
"""Name of the way to run a job whose goodput is wanted."""
_FAULTS = ("killed rank", "hung rank", "lost node")
"""Faults that recovery.py measures under torchrun: that of a crash, of a hang, and of hardware."""


@dataclass(frozen=True)
class LargeJob:
    """A job and its size."""

    ranks: int
    parameters: float
    step_s: float = 6.0
    """About 16 million tokens at 400 TFLOP/s a GPU, for Llama 3 405B on 16,384 GPUs."""

    @property
    def between_faults_s(self) -> float:
        """Mean time between two faults."""
        return RANK_S_TO_FAILURE / self.ranks

    @property
    def state_bytes(self) -> float:
        """Bytes of a rank's share of the state."""
        return BYTES_PER_PARAMETER * self.parameters / self.ranks


JOBS = (LargeJob(1_000, 70e9), LargeJob(16_384, 405e9), LargeJob(100_000, 2e12))


class Measured:
    """What our benchmarks have measured. Raises ValueError for what they have not."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._faults = found[RECOVERY]
        self._checkpoint = found[CHECKPOINT]
        self._sizes = {int(row["ranks"]): row for row in found[CONTROL_PLANE]["sizes"]}
        self._hooks = found[HOOKS]

    def start_s(self, fault: str, launcher: str) -> float:
        """Return the seconds from a fault of a small job to its first new step.

        A plain torchrun that did not continue in time gets its best time for another fault.
        """
        known = [float(own)] if (own := self._faults[fault][launcher]["continued_s"]) is not None else []
        if not known and launcher == "plain":
            times = [row[launcher]["continued_s"] for row in self._faults.values()]
            known = [float(seconds) for seconds in times if seconds is not None]
        if not known:
            raise ValueError(f"{RECOVERY}: {launcher} has not continued after this: {fault}")
        return min(known)

    def verdict_s(self, ranks: int) -> float:
        """Return the seconds from the deadline of a hang to its verdict, interpolated between the measured sizes."""
        points = sorted((size, self._verdict_s(row)) for size, row in self._sizes.items())
        for (few, early_s), (many, late_s) in pairwise(points):
            if ranks <= many:
                return early_s + (late_s - early_s) * max(0.0, (ranks - few) / (many - few))
        raise ValueError(f"{CONTROL_PLANE}: no size of at least {ranks:,} ranks was measured")

    @staticmethod
    def _verdict_s(row: Mapping[str, Any]) -> float:
        if row.get("verdict_after_s") is None:
            raise ValueError(f"{CONTROL_PLANE}: {row['ranks']:,} ranks have no verdict")
        # Time was simulated, and passed more slowly than on a machine that keeps up.
        return float(row["verdict_after_s"]) * max(1.0, float(row["factor"]))

    def stall_s(self, state_bytes: float) -> float:
        """Return what a snapshot delays training."""
        return self._scaled(self._checkpoint["stall_s"], state_bytes)

    def save_s(self, state_bytes: float, launcher: str) -> float:
        """Return what writing a checkpoint delays training, while a core is left to the writer."""
        one_trains = self._checkpoint["slowdowns"]["1"]
        name = "slowdown_s" if launcher == "holdfast" else "dcp_slowdown_s"
        return max(0.0, self._scaled(one_trains[name], state_bytes))

    def durable_s(self, state_bytes: float) -> float:
        """Return the time until a checkpoint of plain torch is complete."""
        one_trains = self._checkpoint["slowdowns"]["1"]
        return self._scaled(one_trains["durable_s"][one_trains["dcp_stager"]], state_bytes)

    def load_s(self, state_bytes: float, source: str) -> float:
        """Return the time to load a state: from a slot (``memory``), or from a file as it is (``read``)."""
        return self._scaled(self._checkpoint["loads_s"][source], state_bytes)

    def _scaled(self, seconds: float, state_bytes: float) -> float:
        return seconds * state_bytes / float(self._checkpoint["state_bytes"])

    @property
    def hooks_s(self) -> float:
        """Seconds of all hook calls of a step."""
        return float(self._hooks["p50_us"]) / 1e6


def holdfast(job: LargeJob, measured: Measured, every_steps: int | None) -> JobCosts:
    """Return a job of `holdfast publish --preflight --quarantine act`.

    Its ranks start as slowly as under torchrun, where the faults were measured. A replica snapshot is compressed as a
    checkpoint is, so it delays training as much. ``every_steps``: steps between two snapshots; None: the best number by
    Young.
    """
    state = job.state_bytes
    stall_s, save_s = measured.stall_s(state), measured.save_s(state, "holdfast")
    best_steps = math.ceil(_young_s(job, stall_s + save_s) / job.step_s)
    snapshot_every_s = (every_steps or best_steps) * job.step_s
    copy_s = RANKS_PER_NODE * state / REPLICA_BYTES_PER_S
    replicate_every_s = max(snapshot_every_s, REPLICATE_EVERY_S, copy_s)
    saving = (
        stall_s / snapshot_every_s
        + save_s / replicate_every_s
        + save_s / CHECKPOINT_EVERY_S
        + measured.hooks_s / job.step_s
    )
    verdict_s, load_s = measured.verdict_s(job.ranks), measured.load_s(state, "memory")
    late_s = max(LATE_S, LATE_STEPS * job.step_s)
    crash_s, hang_s, node_s = (measured.start_s(fault, "holdfast") for fault in _FAULTS)
    return JobCosts(
        HOLDFAST if every_steps else f"{HOLDFAST}, best: every {snapshot_every_s:.0f} s",
        state_every_s=snapshot_every_s,
        saving_share=saving,
        pauses={
            CRASH: _pause(job, verdict_s, crash_s, load_s),
            HANG: _pause(job, verdict_s + LIKELY_S, hang_s, load_s),
            HARDWARE: _pause(job, verdict_s + late_s, node_s, load_s + copy_s, check_s=CHECK_S),
        },
        copied_after_s=max(REPLICATE_EVERY_S, replicate_every_s - snapshot_every_s) + copy_s,
        empty_memory=frozenset({HARDWARE}),
    )


def plain(job: LargeJob, measured: Measured, every_s: float | None) -> JobCosts:
    """Return plain torchrun, with asynchronous checkpoints to a disk that is as fast as ours.

    It leaves a bad node out after one fault, and notices all but hangs immediately. ``every_s``: time between two
    checkpoints; None: the best one by Young, from what they cost here.
    """
    save_s, load_s = measured.save_s(job.state_bytes, "plain"), measured.load_s(job.state_bytes, "read")
    durable_s = measured.durable_s(job.state_bytes)
    best_s = max(_young_s(job, save_s), durable_s, job.step_s)
    interval_s = best_s if every_s is None else every_s
    crash_s, hang_s, node_s = (measured.start_s(fault, "plain") for fault in _FAULTS)
    return JobCosts(
        f"plain torchrun, best: every {best_s:.0f} s"
        if every_s is None
        else f"plain torchrun, every {every_s / 60:.0f} min",
        state_every_s=interval_s,
        saving_share=save_s / interval_s,
        pauses={
            CRASH: _pause(job, 0.0, crash_s, load_s),
            HANG: _pause(job, NCCL_TIMEOUT_S, hang_s, load_s),
            HARDWARE: _pause(job, 0.0, node_s, load_s),
        },
        kept_after_s=durable_s,
    )


def _young_s(job: LargeJob, save_s: float) -> float:
    """Return the best time between two states, of which each delays training by ``save_s``: see docs/planning.md."""
    return math.sqrt(2.0 * save_s * job.between_faults_s)


def _pause(job: LargeJob, notice_s: float, start_s: float, load_s: float, *, check_s: float = 0.0) -> dict[str, float]:
    """Return the parts of the time from a fault to the next step, in their order."""
    communicators_s = COMMUNICATORS_S_PER_RANK * job.ranks
    return {NOTICE: notice_s, CHECK: check_s, START: start_s, COMMUNICATORS: communicators_s, LOAD: load_s}


def ways_to_run(job: LargeJob, measured: Measured) -> tuple[JobCosts, ...]:
    """Return Holdfast with defaults, plain torchrun with checkpoints every 15 and 60 minutes, and both at best."""
    ours, our_best = (holdfast(job, measured, every_steps) for every_steps in (SNAPSHOT_EVERY_STEPS, None))
    often, seldom, best = (plain(job, measured, every_s) for every_s in (900.0, 3600.0, None))
    return (ours, often, seldom, our_best, best)


def recorded() -> Measured:
    """Return the figures of the record."""
    return Measured(json.loads(RECORD.read_text()))


def measure(say: Callable[[str], None]) -> None:
    """Run the benchmarks that the costs come from, and record their last lines. Raises ValueError if one has none."""
    found = {}
    for line in BENCHMARKS:
        say(f"benchmarks/{line}")
        name, *flags = line.split()
        command = [sys.executable, str(ROOT / "benchmarks" / name), *flags, "--json"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # a missed goal also exits with 1
        lines = ran.stdout.splitlines()
        if not lines or not lines[-1].startswith("{"):
            raise ValueError(f"benchmarks/{line} has ended with {ran.returncode}, and without a result")
        found[line] = json.loads(lines[-1])
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
