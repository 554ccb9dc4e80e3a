"""Profiles the next full steps of this rank on request, and reports how that ended."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from holdfast_base.threads import show_name
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.profiling.profile_files import ProfileFileError, expect_room
from holdfast_hooks.profiling.torch_profile import OtherProfilerError, TorchProfile, prepare
from holdfast_proto.limits import MOST_PROFILED_STEPS
from holdfast_proto.rank_context import THREAD_PREFIX
from holdfast_proto.run_files import rank_evidence
from holdfast_proto.v1.session_pb2 import ProfileDone, ProfileSteps


@dataclass
class _Job:
    wanted: ProfileSteps
    until_s: float
    """Monotonic time after which the training thread gives up at the end of a step."""
    profile: TorchProfile | None = None
    first_step: int = -1
    last_step: int = -1


class StepProfiler:
    """One profile at a time: the reporter thread requests it, the training thread runs it, a third thread writes it.

    Args:
        rank: number in the names of the files.
    """

    def __init__(self, rank: int, once: OnceLog) -> None:
        self.due = False
        """Whether the training thread must call :meth:`at_boundary` at the end of the step; almost always False."""
        self._rank = rank
        self._once = once
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._done: deque[ProfileDone] = deque()
        self._newest: ProfileDone | None = None
        self._is_closed = False
        self._newest_step = -1
        """Newest step at whose end the training thread was here."""

    def request(self, wanted: ProfileSteps) -> tuple[bool, str]:
        """Accept a request, or return why not (reporter thread). One that is known already is accepted again."""
        if not 1 <= wanted.steps <= MOST_PROFILED_STEPS:
            return False, f"{wanted.steps} steps are out of range: profile 1 to {MOST_PROFILED_STEPS}"
        with self._lock:
            if self._newest is not None and self._newest.request == wanted.request:
                self._done.append(self._newest)
                return True, ""
            if self._job is not None:
                is_same = self._job.wanted.request == wanted.request
                return is_same, "" if is_same else "another profile of this rank is under way: try again when it ends"
            if self._is_closed:
                return False, "this rank has left training"
            job = self._job = _Job(wanted, monotonic() + wanted.patience_s)
        self._in_background(lambda: self._prepare(job), job)
        return True, ""

    def take_done(self) -> ProfileDone | None:
        """Return the end of a profile that is to be reported, or None (reporter thread)."""
        return self._done.popleft() if self._done else None

    def at_boundary(self, step: int, *, is_last: bool = False) -> None:
        """Start, continue or end the profile at the end of ``step``. Never raises (training thread).

        ``is_last``: the loop has no further step. What ends the hooks later may be another thread, which cannot end a
        profile.
        """
        job = self._job
        if job is None:
            return
        try:
            self._advance(job, step, is_last=is_last)
        except OtherProfilerError as error:
            self._finish(job, str(error))
        except Exception as error:  # noqa: BLE001 - whatever torch raises, training continues
            self._once.warn("a profile failed", repr(error))
            self._finish(job, f"torch's profiler failed: {_one_line(error)}")

    def close(self) -> None:
        """End a profile that is not complete, because the rank leaves training (training thread)."""
        with self._lock:
            self._is_closed = True
            job = self._job
        if job is None or job.last_step >= 0:  # none, or it is being written
            return
        self._give_up(job, f"the rank left training after {_count(job, self._newest_step)}")

    def _advance(self, job: _Job, step: int, *, is_last: bool) -> None:
        self._newest_step = step
        profile = job.profile
        is_late = monotonic() > job.until_s
        is_complete = profile is not None and step - job.first_step + 1 >= job.wanted.steps
        if is_last and not is_complete:
            self._give_up(job, f"the training loop ended after {_count(job, step)}")
        elif profile is None:
            if is_late:
                self._finish(job, f"no step ended within {job.wanted.patience_s:.0f} s")
                return
            profile = TorchProfile(sys.modules["torch"])
            profile.start(step + 1)
            job.profile, job.first_step = profile, step + 1
        elif profile.gave_way or profile.is_wanted_elsewhere:
            self._give_up(job, "the script started a profiler of its own, and this one gave way: try again later")
        elif is_complete:
            profile.end(keep=True)
            job.last_step = step
            self.due = False
            self._in_background(lambda: self._write(job, profile), job)
        elif is_late:
            self._give_up(job, f"only {_count(job, step)} ended within {job.wanted.patience_s:.0f} s")
        else:
            profile.begin_step(step + 1)

    def _give_up(self, job: _Job, problem: str) -> None:
        try:
            if job.profile is not None:
                job.profile.end(keep=False)
        except Exception as error:  # noqa: BLE001 - whatever torch raises, training continues
            self._once.warn("a profile cannot be ended", repr(error))
        self._finish(job, problem)

    def _prepare(self, job: _Job) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            self._finish(job, "this rank has not imported torch")
            return
        expect_room(Path(job.wanted.directory))
        prepare(torch)
        self.due = True

    def _write(self, job: _Job, profile: TorchProfile) -> None:
        names = profile.write(Path(job.wanted.directory), rank_evidence(self._rank, _steps(job)))
        self._finish(job, "", names)

    def _in_background(self, work: Callable[[], None], job: _Job) -> None:
        def run() -> None:
            show_name()
            try:
                work()
            except ProfileFileError as error:
                self._finish(job, str(error))
            except Exception as error:  # noqa: BLE001 - whatever torch raises, training continues
                self._once.warn("a profile failed", repr(error))
                self._finish(job, f"the profile failed: {_one_line(error)}")

        threading.Thread(target=run, name=f"{THREAD_PREFIX}profile", daemon=True).start()

    def _finish(self, job: _Job, problem: str, names: list[str] | None = None) -> None:
        """Note the end of a profile. The next one may be requested."""
        done = ProfileDone(
            request=job.wanted.request,
            files=names or [],
            problem=problem,
            first_step=job.first_step,
            last_step=job.last_step,
        )
        with self._lock:
            if self._job is not job:
                return
            self._job, self._newest = None, done
            self._done.append(done)
            self.due = False


def _steps(job: _Job) -> str:
    return f"step-{job.first_step}" if job.wanted.steps == 1 else f"steps-{job.first_step}-{job.last_step}"


def _count(job: _Job, newest_step: int) -> str:
    ended = 0 if job.first_step < 0 else max(0, newest_step - job.first_step + 1)
    return f"{ended} of {job.wanted.steps} steps"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
