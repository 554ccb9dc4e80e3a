"""``holdfast demo``: kills a rank, hangs another, and compares with an undisturbed run."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.console import Console

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format.manifest import load_committed_indexes
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor, shard_path
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_cli.demo.demo_report import DemoReport, judge
from holdfast_cli.demo.faults import FaultPlan, Injected, PlannedFault
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.fault_injection import request_fault
from holdfast_cli.flags import start_flags
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.reports.page import write_report
from holdfast_cli.reports.run_facts import find_source, read_facts
from holdfast_cli.settings.schema import PresetName
from holdfast_cli.views.console_address import start_lines
from holdfast_cli.views.display import display_for
from holdfast_cli.views.output import print_json
from holdfast_cli.views.run_view import Surroundings
from holdfast_cli.views.summary import ended_badly
from holdfast_hooks import Phase
from holdfast_hooks.faults import Fault
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.snapshot import StateTree
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, Incident

LAYOUT = {"dp": 2, "tp": 2, "pp": 2}
RANKS = 8
KILLED_RANK = 5
STOPPED_RANK = 2
FEWEST_STEPS = 30
CHECKPOINT_EVERY = 20
CONFIGURATION = Path(str(files("holdfast_trainer") / "configs" / "demo.toml"))


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Settings of a demonstration."""

    steps: int
    seed: int
    keep: Path | None = None
    """Folder for both runs; None: a temporary one."""
    report: Path = Path("holdfast-demo-report.html")
    """File that shows the disturbed run."""

    def __post_init__(self) -> None:
        """Raise SettingsError for settings that leave no room for the faults, or for the report."""
        if self.steps < FEWEST_STEPS:
            raise SettingsError(f"--steps {self.steps}: use at least {FEWEST_STEPS}, so that two faults fit in")
        if not os.access(self.report.absolute().parent, os.W_OK):
            raise SettingsError(f"--report {self.report}: its folder cannot be written to: name another file")


@dataclass(frozen=True)
class _Ended:
    status: RunStatus
    incidents: tuple[Incident, ...]
    injected: tuple[Injected, ...]
    final_checkpoint: Path


class Demo:
    """Carries the demonstration out, and shows it on ``console``."""

    def __init__(self, options: DemoOptions, console: Console, interruption: Interruption) -> None:
        self._options = options
        self._console = console
        self._interruption = interruption

    def carry_out(self) -> DemoReport:
        """Run both and compare. Raises CommandError if one of them does not finish."""
        for module in ("torch", "holdfast_trainer"):
            if find_spec(module) is None:
                raise SettingsError(f"the demo needs {module}: install the extra trainer of holdfast-torch")
        if self._options.keep is not None:
            return self._in_directory(self._options.keep)
        directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        try:
            return self._in_directory(directory)
        finally:
            shutil.rmtree(directory)

    def _in_directory(self, directory: Path) -> DemoReport:
        third = self._options.steps // 3
        kill = Fault("kill", rank=KILLED_RANK)
        hang = Fault("stop", rank=STOPPED_RANK, phase=Phase.FORWARD_BACKWARD)
        faults = (
            PlannedFault("kill", kill, third, f"rank {KILLED_RANK} is killed (SIGKILL) after step {third}"),
            PlannedFault(
                "hang", hang, 2 * third, f"rank {STOPPED_RANK} is stopped (SIGSTOP) in a step after {2 * third}"
            ),
        )
        undisturbed = self._run(directory, "undisturbed", ())
        disturbed = self._run(directory, "disturbed", faults)
        facts = read_facts(find_source(directory, "disturbed"))
        written = write_report(facts, self._options.report, flag="--report")
        return DemoReport(
            ranks=RANKS,
            layout=LAYOUT,
            steps=self._options.steps,
            faults=judge(disturbed.injected, disturbed.incidents),
            planned_faults=len(faults),
            final_loss=disturbed.status.loss,
            differences=_compare(undisturbed.final_checkpoint, disturbed.final_checkpoint),
            page=written.path,
        )

    def _run(self, directory: Path, name: str, faults: Sequence[PlannedFault]) -> _Ended:
        with (
            LocalRun(self._local_options(directory, name), self._interruption) as local,
            display_for(self._console) as display,
        ):
            display.say(start_lines(local.paths.control, sys.stderr if self._console.stderr else sys.stdout))
            plan = FaultPlan(faults, lambda fault: request_fault(local.control, fault))

            def observe(status: RunStatus) -> None:
                plan.observe(status)
                title = f"{name}: {plan.story() or 'nothing will be done to it'}"
                display.update(status, Surroundings(title=title, total_steps=self._options.steps, notes=local.notes()))

            status = local.wait(observe)
            if status.phase != RUN_PHASE_FINISHED:
                raise ended_badly(status, local.paths.logs, local.checkpoints)
            final = CheckpointDirectory(Path(local.checkpoints), kept=1).step_directory(self._options.steps - 1)
            return _Ended(status, tuple(local.control.incidents()), tuple(plan.injected), final)

    def _local_options(self, directory: Path, name: str) -> LocalRunOptions:
        flags = {
            "--config": CONFIGURATION,
            "--train.steps": self._options.steps,
            "--train.seed": self._options.seed,
            "--data.cache_directory": directory / "corpus",  # deleted with everything else
        }
        return LocalRunOptions(
            run=name,
            command=("python", "-m", "holdfast_trainer", *(str(word) for flag in flags.items() for word in flag)),
            ranks=RANKS,
            directory=directory,
            snapshot_every=1,
            checkpoint_every=CHECKPOINT_EVERY,
            preemption_grace_s=0.0,  # nobody continues a demonstration
            preset=PresetName.FAST,
            faults_allowed=True,
        )


def _compare(a: Path, b: Path) -> list[str]:
    try:
        return list(state_differences(a, b))
    except CheckpointError as error:
        raise CommandError(f"the final checkpoints cannot be compared: {error}") from None


def state_differences(a: Path, b: Path) -> list[str]:
    """Return one line per difference between the states in two checkpoints' directories; none: bit-identical.

    It verifies the shards of both first, and then compares the trees and the digests of all tensors of all ranks. Run,
    step and generation are not part of the state. Raises CheckpointUnreadable or CheckpointUnavailable if a checkpoint
    does not read back.
    """
    (manifest_a, indexes_a), (manifest_b, indexes_b) = load_committed_indexes(a), load_committed_indexes(b)
    if manifest_a.world_size != manifest_b.world_size:
        return [f"world size: {manifest_a.world_size} and {manifest_b.world_size}"]
    lines = []
    for rank, (index_a, index_b) in enumerate(zip(indexes_a, indexes_b, strict=True)):
        verify_shard(shard_path(a, rank), index_a)
        verify_shard(shard_path(b, rank), index_b)
        if _canonical(index_a.tree) != _canonical(index_b.tree):
            lines.append(f"rank {rank}: the trees differ")
        lines += _tensor_differences(rank, index_a, index_b)
    return lines


def _canonical(tree: StateTree) -> str:
    # As text, because to Python 1, 1.0 and True are equal and NaN is not.
    return json.dumps(tree, sort_keys=True)


def _tensor_differences(rank: int, a: ShardIndex, b: ShardIndex) -> list[str]:
    names_a, names_b = ([tensor.entry.name for tensor in index.tensors] for index in (a, b))
    if names_a != names_b:
        only = sorted(set(names_a) ^ set(names_b))
        return [f"rank {rank}: the tensors are others or in another order: {', '.join(only) or 'same names'}"]
    lines = []
    for tensor_a, tensor_b in zip(a.tensors, b.tensors, strict=True):
        if _placement(tensor_a) != _placement(tensor_b):
            lines.append(f"rank {rank} tensor {tensor_a.entry.name}: type or shape differ")
        elif tensor_a.digest != tensor_b.digest:
            lines.append(f"rank {rank} tensor {tensor_a.entry.name}: values differ")
    return lines


def _placement(tensor: StoredTensor) -> tuple[object, ...]:
    entry = tensor.entry
    return (entry.dtype, entry.shape, entry.global_shape, entry.global_offset, entry.writer)


def demo(flags: start_flags.DemoFlags) -> None:
    """Carry both runs out and print the report. Exits with 1 if a goal was missed."""
    console = Console(stderr=flags.json)
    options = DemoOptions(steps=flags.steps, seed=flags.seed, keep=flags.keep, report=flags.report)
    with Interruption() as interruption:
        report = Demo(options, console, interruption).carry_out()
    console.print(report.render())
    if flags.json:
        print_json(report.to_json())
    raise typer.Exit(ExitCode.SUCCESS if report.succeeded else ExitCode.FAILED)
