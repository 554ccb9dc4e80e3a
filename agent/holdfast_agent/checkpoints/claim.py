"""Claims a place of checkpoints for a run when its agents start, and begins a new history if that is asked for."""

from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_checkpoint.format.history import FIRST, HistoryRecord
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints
from holdfast_proto.left_out import MOST_WINDOWS, Windows, data_of, from_messages, joined
from holdfast_proto.v1 import store_pb2 as store

_NAMED = 8
"""Most steps that a message names."""


class OtherRunError(ValueError):
    """The checkpoints belong to a run of another name."""


def owners_of(checkpoints: RunCheckpoints) -> set[str]:
    """Return the names of the runs that the present history belongs to; empty: no run has used the place.

    There is more than one only if an earlier version let several runs write to one folder. Raises CheckpointError.
    """
    histories = checkpoints.histories
    histories.refresh()
    run = histories.run_of(histories.current)
    if run is not None:
        return {run}
    return {manifest.run for manifest in histories.part(histories.current).manifests().values()}


def other_run(location: str, owners: set[str], run: str) -> str:
    """Return the line that refuses ``run``, whose name is not among the owners."""
    owner = min(owners)
    return (
        f"--checkpoints {location} belongs to run {owner}: use --run {owner} to continue it, --adopt to take it over"
        f" as {run}, or another --checkpoints"
    )


class UnclaimableError(ValueError):
    """The run has ended at a bad loss, and its newest checkpoints may hold a bad state."""


def claim(checkpoints: RunCheckpoints, known: KnownCheckpoints, spec: store.RunSpec, location: str) -> None:
    """Claim the place for the run of ``spec``. All agents of the run do this; the later ones find it done.

    With ``spec.adopt`` the run continues the checkpoints of another run. With ``spec.from_scratch`` a new history
    begins from the seed, with ``spec.continue_from`` one after the checkpoint of that step; the older ones stay as they
    are. So does one if ``spec.left_out`` names data that lie ahead and are not left out yet.

    Raises OtherRunError, BadLossError, ValueError if there is no such step, CheckpointError.
    """
    histories, wanted = checkpoints.histories, from_messages(spec.left_out)
    owners = owners_of(checkpoints)
    is_begun = bool(spec.instance) and any(record.instance == spec.instance for record in histories.records.values())
    is_other = bool(owners) and spec.run not in owners
    if is_other and not (spec.adopt or spec.from_scratch or is_begun):
        raise OtherRunError(other_run(location, owners, spec.run))
    if is_begun:
        return
    if not histories.records:
        if known.history and not owners and not spec.from_scratch:
            # This node has seen checkpoints here that are gone, so the file system may not be mounted. A record written
            # now would be hidden by the mount.
            return
        left_out = () if checkpoints.committed() or checkpoints.damaged() else wanted
        histories.begin(HistoryRecord(number=FIRST, run=min(owners) if is_other else spec.run, left_out=left_out))
    is_used = bool(checkpoints.committed() or checkpoints.damaged() or histories.current != FIRST)
    number = max(histories.current, known.history) + 1
    if spec.from_scratch:
        if is_used or known.history or is_other or histories.left_out != wanted:
            histories.begin(
                HistoryRecord(
                    number=number,
                    run=spec.run,
                    since_unix_s=spec.created_unix_s,
                    instance=spec.instance,
                    left_out=wanted,
                )
            )
        return
    committed = checkpoints.committed()
    steps = {*committed, *checkpoints.damaged()}
    origin = max([-1, *steps, *known.vanished(histories.current, steps, checkpoints.kept)])
    if spec.HasField("continue_from"):
        origin = _chosen(spec.continue_from, committed, location)
    else:
        _refuse_bad_loss(checkpoints, committed, location)
    left_out = _left_out(histories.left_out, wanted, origin)
    if len(left_out) > MOST_WINDOWS:
        raise ValueError(f"--leave-out: with those of earlier starts, more than {MOST_WINDOWS} windows are left out")
    # An agent that comes later, after new checkpoints, must find that this start has chosen its origin. So a chosen one
    # always begins a history, even if nothing is newer.
    if is_other or spec.HasField("continue_from") or left_out != histories.left_out:
        known.check_history(histories.current)
        known.enter(number, origin)
        histories.begin(
            HistoryRecord(
                number=number,
                run=spec.run,
                parent=histories.current,
                parent_step=origin,
                since_unix_s=spec.created_unix_s,
                instance=spec.instance,
                left_out=left_out,
            )
        )


def _left_out(known: Windows, wanted: Windows, origin: int) -> Windows:
    """Return what a line of training leaves out after ``origin``: what it has left out is ``known``.

    Of data that it has trained on already, nothing can be left out.
    """
    data = data_of(origin + 1, known)
    ahead = ((max(first, data), first + steps - max(first, data)) for first, steps in wanted)
    return joined([*known, *ahead])


def _chosen(step: int, committed: list[int], location: str) -> int:
    if step in committed:
        return step
    there = f"those of steps {_listed(committed)}" if committed else "none"
    raise ValueError(f"--continue-from {step}: --checkpoints {location} has no checkpoint of this step, but {there}")


def _refuse_bad_loss(checkpoints: RunCheckpoints, committed: list[int], location: str) -> None:
    """Refuse to continue from a checkpoint that may hold a bad state, unless somebody says so."""
    histories = checkpoints.histories
    record = histories.bad_loss(histories.current)
    if record is None or not committed or committed[-1] < record.from_step:
        return
    proven = checkpoints.proven(committed)
    good = [step for step in committed if step < record.from_step or step in proven]
    way = f"--continue-from {good[-1]}" if good else "--continue-from and a step that is good"
    raise UnclaimableError(
        f"--checkpoints {location}: the run has ended at a bad loss, and its checkpoints of step {record.from_step} or"
        f" later may hold the bad state: start it with {way}, or with --from-scratch (`holdfast checkpoint list` shows"
        " all steps)"
    )


def _listed(steps: list[int]) -> str:
    more = f" and {len(steps) - _NAMED} older ones" if len(steps) > _NAMED else ""
    return ", ".join(map(str, steps[-_NAMED:])) + more
