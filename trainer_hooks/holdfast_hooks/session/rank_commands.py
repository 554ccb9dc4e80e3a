"""Carrying out what the agent tells this rank. Reporter thread only."""

from collections.abc import Callable
from pathlib import Path

from holdfast_hooks.faults.fault import Fault
from holdfast_hooks.faults.injector import Injector
from holdfast_hooks.progress.flight_recorder import RecorderUnavailableError, find_dump
from holdfast_hooks.step_commands import ReleaseCommands, StepCommands
from holdfast_proto.v1 import fault_pb2
from holdfast_proto.v1.session_pb2 import CommandAck, RankCommand

Outcome = tuple[bool, str]
"""Accepted, and why not or what was done."""


class RankCommands:
    """Executes commands of this generation.

    Args:
        generation: commands of any other are refused.
        rank: names the evidence file.
        snapshots: orders for a persisted snapshot at the end of a step.
        stops: orders to leave the loop at the end of a step.
        releases: orders to let go of a checkpoint's slot.
        refusal: returns why this rank takes no snapshots, or "" if it does.
        injector: harms this rank when told to; None: the run allows no faults.
    """

    def __init__(
        self,
        *,
        generation: int,
        rank: int,
        snapshots: StepCommands,
        stops: StepCommands,
        releases: ReleaseCommands,
        refusal: Callable[[], str],
        injector: Injector | None = None,
    ) -> None:
        self._generation = generation
        self._rank = rank
        self._snapshots = snapshots
        self._stops = stops
        self._releases = releases
        self._refusal = refusal
        self._injector = injector
        self._accepted_faults: list[Fault] = []

    def execute(self, command: RankCommand) -> CommandAck:
        """Do what ``command`` says, or place it for the training thread; return the answer."""
        if command.generation == self._generation:
            accepted, detail = self._outcome(command)
        else:
            accepted = False
            detail = f"this rank is of generation {self._generation}, the command of {command.generation}"
        return CommandAck(id=command.id, accepted=accepted, detail=detail)

    def answered(self) -> None:
        """Arm what was accepted, now that the answers are on their way: this rank may not live to send more."""
        if self._injector is not None and self._accepted_faults:
            accepted, self._accepted_faults = self._accepted_faults, []
            self._injector.lie_in_wait(accepted)

    def _outcome(self, command: RankCommand) -> Outcome:
        match command.WhichOneof("kind"):
            case "capture_evidence":
                return self._capture_evidence(Path(command.capture_evidence.directory))
            case "snapshot_at":
                refusal = self._refusal()
                return (False, refusal) if refusal else _place(self._snapshots, command.snapshot_at.step)
            case "stop_at":
                return _place(self._stops, command.stop_at.step)
            case "release_at":
                self._releases.place(command.release_at.step, command.release_at.at_step)
                return True, ""
            case "inject_fault":
                return self._accept_fault(command.inject_fault)
            case kind:
                return False, f"unknown command {kind}"

    def _accept_fault(self, order: fault_pb2.Fault) -> Outcome:
        if self._injector is None:
            return False, "this run allows no faults: start it with --allow-faults"
        try:
            self._accepted_faults += self._injector.accept(Fault.from_message(order))
        except ValueError as error:
            return False, str(error)
        return True, ""

    def _capture_evidence(self, directory: Path) -> Outcome:
        path = directory / f"rank-{self._rank:05d}.flight_recorder.json"
        try:
            dump = find_dump()
            if dump is None:
                return False, "this rank has no process group"
            directory.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".part")
            unfinished.write_bytes(dump(True, False))
            unfinished.replace(path)
        except (OSError, RuntimeError, RecorderUnavailableError) as error:
            return False, str(error)
        return True, str(path)


def _place(orders: StepCommands, step: int) -> Outcome:
    return (True, "") if orders.place(step) else (False, f"step {step} has already ended")
