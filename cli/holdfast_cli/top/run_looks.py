"""Asks for the state of a run: of its daemon while it runs, of its folder when it has ended."""

from dataclasses import dataclass
from pathlib import Path

from holdfast_cli.control import ControlError
from holdfast_cli.errors import CommandError
from holdfast_cli.fault_injection import request_fault
from holdfast_cli.live.rank_stacks import LiveStack, unpacked
from holdfast_cli.run_folder.ended import load_incidents, load_last_status
from holdfast_cli.run_folder.target import Target, find_target
from holdfast_cli.top.ranks.oddity import JudgedRank, JudgedRanks, judge_ranks
from holdfast_cli.top.ranks.rank_speeds import RankSpeeds, SpeedWatch
from holdfast_cli.views.phrases import numbers_line
from holdfast_hooks.faults import Fault
from holdfast_proto.limits import STOP_GRACE_S
from holdfast_proto.v1.control_pb2 import (
    RANK_SORT_ODD_FIRST,
    RANK_SORT_RANK,
    DaemonStatus,
    GetStatusRequest,
    RunStatus,
)
from holdfast_proto.v1.store_pb2 import Incident

WHOLE_RUN = 256
"""Most ranks of a run of which each look has all: order and search then need no answer of the daemon."""
_INCIDENTS_EVERY = 10
"""Looks after which all incidents are read again: an older one may have changed."""
_WHOLE = GetStatusRequest(most_ranks=WHOLE_RUN, sort=RANK_SORT_RANK)


@dataclass(frozen=True)
class RunLook:
    """What one look at a run has shown. All that takes long with many ranks is done in the thread that looks."""

    target: Target
    status: RunStatus
    incidents: tuple[Incident, ...]
    judged: JudgedRanks
    numbers: str
    """Numbers of the optimizer and of memory, in one line."""
    watched: JudgedRank | None = None
    """The rank that is open, if it is not on the page."""

    @classmethod
    def of(
        cls,
        target: Target,
        status: RunStatus,
        incidents: tuple[Incident, ...],
        speeds: RankSpeeds,
        *,
        skipped: int = 0,
        watched: RunStatus | None = None,
    ) -> "RunLook":
        """Return a look at a status, with its ranks judged. ``skipped``: ranks of the pages before this one.

        ``watched``: a status with the rank that is open.
        """
        judged = judge_ranks(status, incidents, speeds, skipped=skipped)
        found = judge_ranks(watched).ranks if watched is not None else ()
        return cls(target, status, incidents, judged, numbers_line(status), next(iter(found), None))

    def rank(self, number: int) -> JudgedRank | None:
        """Return a rank that is on the page, or open; None if nothing is known of it."""
        known = (*self.judged.ranks, *([self.watched] if self.watched else []))
        return next((rank for rank in known if rank.number == number), None)

    @property
    def ended(self) -> str:
        """How the run ended; "" while it runs, or if nothing on this machine says so."""
        return self.target.ended.outcome if self.target.ended else ""


class LookSource:
    """Looks at one run as ``holdfast status`` does. Its methods block, and are called by one thread at a time."""

    def __init__(self, directory: Path, run: str | None, control: Path | None) -> None:
        self._directory, self._run, self._control = directory, run, control
        self._speeds = SpeedWatch()
        self._looks = 0
        self._newest = Incident()
        self._incidents: tuple[Incident, ...] = ()
        self._is_paged = False
        self.page = GetStatusRequest(most_ranks=WHOLE_RUN, sort=RANK_SORT_ODD_FIRST)
        """Page of ranks that looks at a larger run bring. Any thread may put another one here."""
        self.watched_rank: int | None = None
        """Rank that looks bring too. Any thread may put another one here."""

    def look(self) -> RunLook:
        """Return the present state. Raises CommandError if there is no such run, or nobody answers for it.

        The run is found anew each time: it may have ended, or been started again with another socket.
        """
        target = find_target(self._directory, self._run, self._control)
        if target.record is not None:
            self._run = target.run  # a run that is started later is another one
        last = load_last_status(Path(target.ended.directory)) if target.ended else None
        if target.ended is not None and last is not None:
            return RunLook.of(target, last, tuple(load_incidents(target.ended)), self._speeds.see(last))
        client, page = target.connect(), self.page
        status = client.status(page if self._is_paged else _WHOLE)
        if (sum(status.rank_counts.values()) > WHOLE_RUN) != self._is_paged:
            self._is_paged = not self._is_paged
            status = client.status(page if self._is_paged else _WHOLE)
        if self._is_new(status):
            self._incidents = tuple(client.incidents())
        watched, number = None, self.watched_rank
        if self._is_paged and number is not None and all(view.rank != number for view in status.ranks):
            watched = client.status(GetStatusRequest(most_ranks=1, search=str(number)))
        skipped = page.skip_ranks if self._is_paged else 0
        speeds = self._speeds.see(status)
        return RunLook.of(target, status, self._incidents, speeds, skipped=skipped, watched=watched)

    def take_checkpoint(self) -> str:
        """Request a checkpoint; return what follows. Raises CommandError if it is refused."""
        step = self._target().connect().take_checkpoint()
        return f"the daemon will take a checkpoint of step {step}"

    def stop(self) -> str:
        """Request the end of the run after a last checkpoint. Raises CommandError if it is refused."""
        self._target().connect().stop_run(grace_s=STOP_GRACE_S)
        return "the daemon will end the run"

    def take_stacks(self, rank: int) -> list[LiveStack]:
        """Return the stacks of a rank now. Raises CommandError if they are refused."""
        return unpacked(self._target().connect().take_stacks([rank], native=False))

    def inject(self, fault: Fault) -> str:
        """Request a fault; return, once its rank has answered, what follows. Raises CommandError if it is refused."""
        waits_for = request_fault(self._target().connect(), fault)
        then = f": it waits for {waits_for}" if waits_for else ""
        return f"rank {fault.rank} has accepted {fault.kind}{then}"

    def daemon(self) -> DaemonStatus:
        """Return how the daemon itself is. Raises CommandError if it does not say."""
        return self._target().connect().daemon()

    def _target(self) -> Target:
        return find_target(self._directory, self._run, self._control)

    def _is_new(self, status: RunStatus) -> bool:
        self._looks += 1
        is_new = status.incidents != len(self._incidents) or status.newest_incident != self._newest
        self._newest = status.newest_incident
        return is_new or self._looks % _INCIDENTS_EVERY == 0


def reason_of(error: Exception) -> str:
    """Return in one line why a look has failed."""
    if isinstance(error, ControlError) and error.unreachable:
        return "the daemon does not answer"
    return str(error) if isinstance(error, CommandError) else f"{type(error).__name__}: {error}"
