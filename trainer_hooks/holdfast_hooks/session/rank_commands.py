"""Carries out the agent's commands to this rank, or places them for the training thread. Reporter thread only."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_base.files import replace_file
from holdfast_hooks.profiling.step_profiler import StepProfiler
from holdfast_hooks.progress.recorders.recorder import (
    FullDumpRefusedError,
    GenericRecorder,
    Recorder,
    RecorderUnavailableError,
)
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.run_files import flight_recorder_dump
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import fault_pb2
from holdfast_proto.v1.session_pb2 import CommandAck, RankCommand, SpikeFound

if TYPE_CHECKING:
    from holdfast_hooks.faults.requested_faults import RequestedFaults


class StepCommands:
    """Commands of one kind by the step at whose end they are due. The reporter places, the training thread takes.

    No lock decides whether a command came in time. The training thread writes ``timeline.boundary`` first and takes
    the command second. The reporter places the command first and reads ``boundary`` second. So whichever thread comes
    second sees what the other one did, and if both remove a command only one of them gets it.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.due: dict[int, bool] = {}
        """By step; empty almost always."""

    def place(self, step: int) -> bool:
        """Place a command for the end of ``step``; return False if that step is over (reporter thread)."""
        self.due[step] = True
        too_late = self._timeline.boundary >= step
        return not (too_late and self.due.pop(step, False))

    def take(self, step: int) -> bool:
        """Remove the command for the end of ``step``; return whether there was one (training thread)."""
        return self.due.pop(step, False)


Outcome = tuple[bool, str]
"""Whether a command was accepted, and the reason or the result in words."""


class RankCommands:
    """Executes commands of this generation, or places them for the training thread, and answers each.

    Args:
        generation: this rank's. Commands of another one are refused.
        rank: number in the name of the evidence file.
        snapshots: commands for a snapshot at the end of a step, pinned for a checkpoint.
        replicas: commands for a snapshot at the end of a step, pinned for a replica snapshot.
        stops: commands to leave the loop at the end of a step.
        refusal: returns why this rank takes no snapshots, or "" if it does; given True, no replica snapshots.
        spikes: takes what the coordinator has found in the loss; returns why it is refused, or "".
        faults: those that operators request of this rank; None if the run allows none.
        recorders: returns the recorders that the rank's groups use.
        profiler: profiles steps of this rank.
    """

    def __init__(
        self,
        *,
        generation: int,
        rank: int,
        snapshots: StepCommands,
        replicas: StepCommands,
        stops: StepCommands,
        refusal: Callable[[bool], str],
        spikes: Callable[[SpikeFound], str],
        faults: "RequestedFaults | None" = None,
        recorders: Callable[[], Sequence[Recorder]] = lambda: (),
        profiler: StepProfiler | None = None,
    ) -> None:
        self._generation = generation
        self._rank = rank
        self._snapshots = snapshots
        self._replicas = replicas
        self._stops = stops
        self._refusal = refusal
        self._spikes = spikes
        self._faults = faults
        self._recorders = recorders
        self._profiler = profiler

    def execute(self, command: RankCommand) -> CommandAck:
        """Carry ``command`` out, or place it for the training thread; return the answer."""
        if command.generation == self._generation:
            accepted, detail = self._outcome(command)
        else:
            accepted = False
            detail = f"this rank is of generation {self._generation}, the command of {command.generation}"
        return CommandAck(id=command.id, accepted=accepted, detail=detail)

    def answered(self) -> None:
        """Strike with the accepted faults from now on: their answers are sent."""
        if self._faults is not None:
            self._faults.answered()

    def _outcome(self, command: RankCommand) -> Outcome:
        match command.WhichOneof("kind"):
            case "capture_evidence":
                return self._capture_evidence(Path(command.capture_evidence.directory))
            case "snapshot_at" | "stop_at":
                return self._place(command)
            case "inject_fault":
                return self._accept_fault(command.inject_fault)
            case "spike_found":
                problem = self._spikes(command.spike_found)
                return not problem, problem
            case "profile_steps" if self._profiler is not None:
                return self._profiler.request(command.profile_steps)
            case kind:
                return False, f"unknown command {kind}"

    def _place(self, command: RankCommand) -> Outcome:
        """Place a command for the end of a step."""
        if command.HasField("stop_at"):
            return _place(self._stops, command.stop_at.step)
        replica = command.snapshot_at.replica
        refusal = self._refusal(replica)
        commands = self._replicas if replica else self._snapshots
        return (False, refusal) if refusal else _place(commands, command.snapshot_at.step)

    def _accept_fault(self, fault: fault_pb2.Fault) -> Outcome:
        if self._faults is None:
            return False, "this run allows no faults: start it with --allow-faults"
        try:
            return True, self._faults.accept(fault)
        except ValueError as error:
            return False, str(error)

    def _capture_evidence(self, directory: Path) -> Outcome:
        """Write the dump of each recorder in use into a file of its own: their group ids collide."""
        written, problems = [], []
        # A gloo group that no poll has seen yet is in the generic recorder, too.
        for recorder in self._recorders() or (GenericRecorder(),):
            is_generic = recorder.source == common.RECORDER_SOURCE_GENERIC
            path = directory / flight_recorder_dump(self._rank, "" if is_generic else recorder.backend)
            try:
                dump = recorder.entries()
                directory.mkdir(parents=True, exist_ok=True)
                replace_file(path, dump)
                written.append(str(path))
            except (OSError, RuntimeError, RecorderUnavailableError, FullDumpRefusedError) as error:
                problems.append(str(error))
        return bool(written), "; ".join(written or problems)


def _place(commands: StepCommands, step: int) -> Outcome:
    return (True, "") if commands.place(step) else (False, f"step {step} has already ended")
