"""Follows a folder of checkpoints: judges each one when it is complete, and knows the newest good one."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from holdfast_checkpoint.guard.candidates import Candidate, NotACheckpointError, find_candidates, look_at
from holdfast_checkpoint.guard.damage import DamageFound, Reason, has_vanished
from holdfast_checkpoint.guard.examination import Examined, Examiner

_RETRY_S = 30.0
"""Time until a checkpoint is tried again that could not be read."""
_RESCAN_S = 60.0
"""Time between two looks at all files of a checkpoint that was judged, if its folder does not show a change."""
_DETAILED = 2
"""Newest checkpoints of which all tensors are known."""
_GONE_KEPT = 1
"""Checkpoints that were removed and still serve for comparison: the next one may be stale all the same."""
_REMOVED = "removed"


class Outcome(StrEnum):
    """How a checkpoint was judged."""

    GOOD = "good"
    BAD = "bad"
    INCOMPLETE = "incomplete"
    """Its writer has not finished it, and does not work on it."""
    UNREADABLE = "unreadable"
    """It cannot be read now. That says nothing about it."""


@dataclass(frozen=True)
class Judgment:
    """One result, as it is reported."""

    outcome: Outcome
    name: str
    step: int | None
    findings: tuple[DamageFound, ...] = ()
    problem: str = ""
    """Why it cannot be read."""
    examined: Examined | None = None


@dataclass
class _Followed:
    """What is known of one file or folder."""

    candidate: Candidate
    changed_s: float
    """When it was last seen to change."""
    retry_s: float = 0.0
    reported: str = ""
    """The newest problem that was reported of it."""
    damage: str = ""
    """What is wrong with it as long as it may still be half written."""


@dataclass(frozen=True)
class _Scan:
    """The newest look at all files below a path that has nothing new."""

    mtime_ns: int
    """Time of the file, or of the folder itself."""
    done_s: float


@dataclass(frozen=True, kw_only=True)
class GuardTimes:
    """Times in seconds."""

    quiet_s: float = 10.0
    """Time without a change after which a checkpoint may be complete."""
    incomplete_after_s: float = 600.0
    """Time without a change after which an unfinished checkpoint is reported."""


@dataclass
class FolderGuard:
    """Follows one folder. :meth:`look` is one pass; call it again and again, from one thread."""

    folder: Path
    examiner: Examiner
    times: GuardTimes = field(default_factory=GuardTimes)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Begin without any knowledge of the folder."""
        self._followed: dict[Path, _Followed] = {}
        self._judged: dict[Path, Examined] = {}
        self._gone: list[Examined] = []
        self._scans: dict[Path, _Scan] = {}
        self._is_first_pass = True
        self.is_waiting = False
        """Whether the newest pass has seen a checkpoint that changes, or may still change."""

    @property
    def newest(self) -> Examined | None:
        """The newest complete checkpoint that is still there."""
        return max(self._judged.values(), key=_order, default=None)

    @property
    def newest_good(self) -> Examined | None:
        """The newest good checkpoint that is still there."""
        return max((each for each in self._judged.values() if each.is_good), key=_order, default=None)

    def look(self, *, is_last: bool = False) -> Iterator[Judgment]:
        """Yield the result of each checkpoint that can be judged now. Raises OSError if the folder cannot be listed.

        ``is_last``: nobody will look again, so report unfinished checkpoints too.
        """
        self.is_waiting = False
        paths = find_candidates(self.folder)
        self._forget_all_but(paths)
        ready: list[Candidate] = []
        for path in paths:
            if self._rests(path):
                continue
            try:
                candidate = look_at(path)
            except NotACheckpointError:
                self._note_scan(path)
                continue
            except OSError as error:
                if not has_vanished(error):
                    yield from self._unreadable(path, error)
                continue
            if self._is_ready(candidate):
                ready.append(candidate)
            if path in self._judged:
                self._note_scan(path)
            else:
                self._scans.pop(path, None)
        self._is_first_pass = False
        for candidate in sorted(ready, key=lambda each: (each.step is None, each.step or 0, each.newest_mtime_s)):
            yield from self._judge(candidate, is_last=is_last)

    def _forget_all_but(self, paths: list[Path]) -> None:
        for path in (self._followed.keys() | self._scans.keys()) - set(paths):
            self._followed.pop(path, None)
            self._scans.pop(path, None)
            self._withdraw(path)

    def _note_scan(self, path: Path) -> None:
        with suppress(OSError):
            self._scans[path] = _Scan(path.stat().st_mtime_ns, self.clock())

    def _rests(self, path: Path) -> bool:
        """Return whether a look at all files of a path can wait: on a network file system each costs the run a bit."""
        scan = self._scans.get(path)
        if scan is None or self.clock() - scan.done_s >= _RESCAN_S:
            return False
        try:
            mtime_ns = path.stat().st_mtime_ns
        except OSError:
            return False
        is_settled = path in self._judged or self.wall_clock() - mtime_ns / 1e9 > self.times.incomplete_after_s
        return is_settled and mtime_ns == scan.mtime_ns

    def _withdraw(self, path: Path) -> None:
        """Take a checkpoint out of the good ones: it has been removed, wholly or in part."""
        gone = self._judged.pop(path, None)
        if gone is not None:
            self._gone = sorted([*self._gone, gone], key=_order)[-_GONE_KEPT:]

    def _is_ready(self, candidate: Candidate) -> bool:
        """Note how a candidate looks now, and return whether it is to be judged."""
        now_s = self.clock()
        known = self._followed.get(candidate.path)
        if known is None:
            # What has been there before the guard may be old. Anything later must be quiet while the guard looks.
            age_s = self.wall_clock() - candidate.newest_mtime_s if self._is_first_pass else 0.0
            known = _Followed(candidate, now_s - max(age_s, 0.0))
            self._followed[candidate.path] = known
        elif known.candidate.files != candidate.files:
            known.changed_s = now_s
            # A framework that removes an old checkpoint takes its files away one by one.
            was_whole = candidate.path in self._judged or known.reported == _REMOVED
            is_removed = was_whole and candidate.files.items() < known.candidate.files.items()
            known.reported, known.damage = _REMOVED if is_removed else "", ""
            self._withdraw(candidate.path)
        known.candidate = candidate
        if candidate.path in self._judged or known.reported == _REMOVED or now_s < known.retry_s:
            return False
        is_quiet = now_s - known.changed_s >= self.times.quiet_s
        self.is_waiting |= not is_quiet
        return is_quiet

    def _judge(self, candidate: Candidate, *, is_last: bool) -> Iterator[Judgment]:
        known = self._followed[candidate.path]
        if candidate.unfinished:
            yield from self._unfinished(candidate, f"{candidate.unfinished} is missing or older", is_last=is_last)
            return
        if known.damage and not self._is_given_up(candidate):  # without a change it need not be read again
            yield from self._unfinished(candidate, known.damage, is_last=is_last)
            return
        others = [each for each in (*self._judged.values(), *self._gone) if each.step != candidate.step]
        earlier = [each for each in others if _order(each) < _order_of(candidate)]
        before = max((each for each in earlier if each.values.windows), key=_order, default=None)
        good = max((each for each in earlier if each.is_good), key=_order, default=None)
        try:
            examined = self.examiner.examine(candidate, before, good)
            now = look_at(candidate.path)
        except NotACheckpointError:
            return
        except OSError as error:
            if not has_vanished(error):
                yield from self._unreadable(candidate.path, error)
            return  # otherwise it is being removed or replaced: the next pass sees which
        if now.files != candidate.files:
            known.candidate, known.changed_s = now, self.clock()
            self.is_waiting = True
            return
        damage = next((each for each in examined.findings if each.reason is Reason.DAMAGED), None)
        is_final = any(each.is_final for each in examined.findings)
        if damage is not None and not (is_final or candidate.is_marked or self._is_given_up(candidate)):
            # Without a mark at its end, a file that is half written looks like one that is cut off.
            known.damage = damage.text
            yield from self._unfinished(candidate, damage.text, is_last=is_last)
            return
        self._judged[candidate.path] = examined
        known.reported = ""
        self._forget_details()
        outcome = Outcome.GOOD if examined.is_good else Outcome.BAD
        yield Judgment(outcome, candidate.name, examined.step, tuple(examined.findings), examined=examined)

    def _forget_details(self) -> None:
        """Keep the lists of tensors of those checkpoints only with which the next one is compared."""
        kept = [*sorted(self._judged.values(), key=_order)[-_DETAILED:], self.newest_good]
        for examined in self._judged.values():
            if not any(examined is each for each in kept):
                examined.forget_details()

    def _unfinished(self, candidate: Candidate, what: str, *, is_last: bool) -> Iterator[Judgment]:
        known = self._followed[candidate.path]
        if known.reported != what and (is_last or self._is_given_up(candidate)):
            known.reported = what
            finding = DamageFound(Reason.INCOMPLETE, f"{what}: its save was cut off, or is still under way")
            yield Judgment(Outcome.INCOMPLETE, candidate.name, candidate.step, (finding,))

    def _is_given_up(self, candidate: Candidate) -> bool:
        """Return whether a candidate will not be finished: it has not changed for long, or a newer one is complete."""
        unchanged_s = self.clock() - self._followed[candidate.path].changed_s
        newest = self.newest
        is_overtaken = newest is not None and newest.candidate.newest_mtime_s > candidate.newest_mtime_s
        return is_overtaken or unchanged_s >= self.times.incomplete_after_s

    def _unreadable(self, path: Path, error: OSError) -> Iterator[Judgment]:
        problem = f"{error.filename or path}: {error.strerror or error}"
        known = self._followed.get(path)
        if known is None:
            known = self._followed[path] = _Followed(Candidate(path, {}, None, "", is_marked=False), self.clock())
        known.retry_s = self.clock() + _RETRY_S
        if known.reported != problem:
            known.reported = problem
            yield Judgment(Outcome.UNREADABLE, path.name, known.candidate.step, problem=problem)


def _order(examined: Examined) -> tuple[bool, float, float]:
    step = examined.step
    return (step is not None, step or 0, examined.candidate.newest_mtime_s)


def _order_of(candidate: Candidate) -> tuple[bool, float, float]:
    step = candidate.step
    # One without a step in its name, such as last.ckpt, is compared with the newest of those before.
    return (True, float("inf") if step is None else step, candidate.newest_mtime_s)
