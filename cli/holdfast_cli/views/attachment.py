"""Notices that no rank of a run has attached: Holdfast then sees no step, and uses and saves no state."""

from holdfast_core.naming import listed
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import LIFE_EXITED, LIFE_RUNNING, LIFE_STARTING, VERDICT_KIND_BAD_CONFIGURATION

FIVE_LINES = "docs/own-trainer.md shows the five lines that a script needs"
NEVER_ATTACHED = (
    f"no rank has called holdfast_hooks.attach(), so Holdfast saw no step and saved nothing: {FIVE_LINES}; or start the"
    " run with `--auto`, which watches a script as it is and saves nothing"
)
NO_AUTOMATIC_RANK = (
    "--auto: no rank has attached. A rank attaches when it calls torch.distributed.init_process_group() in the Python"
    " that Holdfast is installed in, without -I, -E or -S: see docs/no-line.md"
)
LATE_S = 180.0
"""Time after which ranks that have not attached are reported, if the run has a state. Imports may take minutes."""


class AttachmentWatch:
    """Sees every status of a run. ``auto``: the ranks were to attach by themselves."""

    def __init__(self, *, auto: bool = False) -> None:
        self._never_attached = NO_AUTOMATIC_RANK if auto else NEVER_ATTACHED
        self._has_attached = False
        self._has_ended_without = False
        self._missing: list[int] = []
        """Ranks that have ended well and never attached, while all others have attached and ended well."""
        self._is_explained = False
        self._starting_since_unix_s = 0.0
        self._is_late_said = False

    def see(self, status: RunStatus) -> None:
        """Take in one status."""
        # The newest step of a run that was resumed is at first the one from which it was.
        resumed_step = status.resumed_step if status.HasField("resumed_step") else -1
        self._has_attached |= status.newest_step > resumed_step or any(_has_attached(rank) for rank in status.ranks)
        self._has_ended_without |= any(_ended_by_itself_without(rank) for rank in status.ranks)
        if status.ranks:
            self._missing = _missing_of_some(status)
        # Such a verdict says itself why the ranks ended so early.
        self._is_explained |= status.newest_incident.verdict.kind == VERDICT_KIND_BAD_CONFIGURATION

    def late_line(self, status: RunStatus) -> str:
        """Return a line, once, if no rank has attached for long and the run has a state to continue from; else ""."""
        waits = status.HasField("resumed_step") and not self._has_attached
        if not waits or not status.ranks or any(rank.life != LIFE_STARTING for rank in status.ranks):
            self._starting_since_unix_s = 0.0
            return ""
        self._starting_since_unix_s = self._starting_since_unix_s or status.now_unix_s
        since_s = status.now_unix_s - self._starting_since_unix_s
        if self._is_late_said or since_s < LATE_S:
            return ""
        self._is_late_said = True
        return (
            f"no rank has called holdfast_hooks.attach() for {since_s / 60:.0f} minutes, so the state of step"
            f" {status.resumed_step} is not used yet. If the script never attaches, the run fails at its end:"
            f" {FIVE_LINES}"
        )

    def line(self) -> str:
        """Return the line for the end of the run; "" if all ranks have attached, or if none has ended by itself."""
        if self._is_explained:
            return ""
        if self._has_attached and self._missing:
            who = f"rank {self._missing[0]} has" if len(self._missing) == 1 else f"ranks {listed(self._missing)} have"
            return (
                f"{who} never called holdfast_hooks.attach(), so no checkpoint is complete, and a restart would begin"
                " again: call attach() in every rank"
            )
        return self._never_attached if self._has_ended_without and not self._has_attached else ""


def _missing_of_some(status: RunStatus) -> list[int]:
    ended = all(
        rank.life == LIFE_EXITED and rank.exit.code == 0 and not rank.exit.HasField("signal") for rank in status.ranks
    )
    missing = [rank.rank for rank in status.ranks if rank.exit.never_attached]
    return missing if ended and len(missing) < len(status.ranks) else []


def _has_attached(rank: RankView) -> bool:
    return rank.life == LIFE_RUNNING or (rank.life == LIFE_EXITED and not rank.exit.never_attached)


def _ended_by_itself_without(rank: RankView) -> bool:
    """Whether the rank ended without attach(), and no signal ended it: Holdfast kills the others of a failed rank."""
    return rank.exit.never_attached and not rank.exit.HasField("signal")
