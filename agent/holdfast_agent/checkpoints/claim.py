"""Claims a place of checkpoints for a run when its agents start, and begins a new history if that is asked for."""

from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_checkpoint.format.history import FIRST, HistoryRecord
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints
from holdfast_proto.v1 import store_pb2 as store


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


def claim(checkpoints: RunCheckpoints, known: KnownCheckpoints, spec: store.RunSpec, location: str) -> None:
    """Claim the place for the run of ``spec``. All agents of the run do this; the later ones find it done.

    With ``spec.adopt`` the run continues the checkpoints of another run. With ``spec.from_scratch`` a new history
    begins, and the older ones stay as they are. Raises OtherRunError, CheckpointError.
    """
    histories = checkpoints.histories
    owners = owners_of(checkpoints)
    is_begun = bool(spec.instance) and any(record.instance == spec.instance for record in histories.records.values())
    if owners and spec.run not in owners and not (spec.adopt or spec.from_scratch) and not is_begun:
        raise OtherRunError(other_run(location, owners, spec.run))
    if is_begun:
        return
    if not histories.records:
        if known.history and not owners and not spec.from_scratch:
            # This node has seen checkpoints here that are gone, so the file system may not be mounted. A record written
            # now would be hidden by the mount.
            return
        first = HistoryRecord(number=FIRST, run=spec.run if not owners or spec.run in owners else min(owners))
        histories.begin(first)
    is_used = bool(checkpoints.committed() or checkpoints.damaged() or histories.current != FIRST)
    number = max(histories.current, known.history) + 1
    if spec.from_scratch and (is_used or known.history or (owners and spec.run not in owners)):
        histories.begin(
            HistoryRecord(number=number, run=spec.run, since_unix_s=spec.created_unix_s, instance=spec.instance)
        )
    elif owners and spec.run not in owners:
        steps = {*checkpoints.committed(), *checkpoints.damaged()}
        known.check_history(histories.current)
        newest = max([-1, *steps, *known.vanished(histories.current, steps, checkpoints.kept)])
        known.enter(number, newest)
        histories.begin(
            HistoryRecord(
                number=number,
                run=spec.run,
                parent=histories.current,
                parent_step=newest,
                since_unix_s=spec.created_unix_s,
                instance=spec.instance,
            )
        )
