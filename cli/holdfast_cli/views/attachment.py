"""Notices that no rank of a run has attached: Holdfast then sees no step, and the end of the run should say so."""

from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import LIFE_EXITED, LIFE_RUNNING, VERDICT_KIND_BAD_CONFIGURATION

FIVE_LINES = "docs/own-trainer.md shows the five lines that a script needs"
NEVER_ATTACHED = (
    f"no rank has called holdfast_hooks.attach(), so Holdfast saw no step and saved nothing: {FIVE_LINES}; or start the"
    " run with `--auto`, which watches a script as it is and saves nothing"
)
NO_AUTOMATIC_RANK = (
    "--auto: no rank has attached. A rank attaches when it calls torch.distributed.init_process_group() in the Python"
    " that Holdfast is installed in, without -I, -E or -S: see docs/no-line.md"
)


class AttachmentWatch:
    """Sees every status of a run. ``auto``: the ranks were to attach by themselves."""

    def __init__(self, *, auto: bool = False) -> None:
        self._never_attached = NO_AUTOMATIC_RANK if auto else NEVER_ATTACHED
        self._has_attached = False
        self._has_ended_without = False
        self._is_explained = False

    def see(self, status: RunStatus) -> None:
        """Take in one status."""
        self._has_attached |= status.newest_step >= 0 or any(_has_attached(rank) for rank in status.ranks)
        self._has_ended_without |= any(_ended_by_itself_without(rank) for rank in status.ranks)
        # Such a verdict says itself why the ranks ended so early.
        self._is_explained |= status.newest_incident.verdict.kind == VERDICT_KIND_BAD_CONFIGURATION

    def line(self) -> str:
        """Return the line for the end of the run; "" if a rank has attached, or if none has ended by itself."""
        is_due = self._has_ended_without and not (self._has_attached or self._is_explained)
        return self._never_attached if is_due else ""


def _has_attached(rank: RankView) -> bool:
    return rank.life == LIFE_RUNNING or (rank.life == LIFE_EXITED and not rank.exit.never_attached)


def _ended_by_itself_without(rank: RankView) -> bool:
    """Whether the rank ended without attach(), and no signal ended it: Holdfast kills the others of a failed rank."""
    return rank.exit.never_attached and not rank.exit.HasField("signal")
