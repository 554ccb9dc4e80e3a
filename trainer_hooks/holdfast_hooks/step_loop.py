"""The steps of one training loop: where they begin and end, and the state that they start from."""

from collections.abc import Iterator, Mapping

from holdfast_hooks.hook_errors import ConfigurationError, OnceLog
from holdfast_hooks.left_loop import LeftStep, OpenStep
from holdfast_hooks.phases import Phase
from holdfast_hooks.restore.starting_point import has_starting_point, start_from
from holdfast_hooks.sidecar import Sidecar
from holdfast_hooks.state.data_position import (
    DRAWN,
    DRAWN_ADVICE,
    NO_POSITION,
    NO_POSITION_ADVICE,
    DrawsAfterRestore,
    lacks_data_position,
)
from holdfast_hooks.state.data_windows import DataWindows
from holdfast_hooks.state.encoding import Stateful
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.rank_context import RankContext

UNRESTORED = (
    "holdfast: the run has a state to continue from, and the script closed its hooks without it: call hooks.restore()"
    " before the loop, or start the run with --from-scratch"
)
"""Last words of a rank that closes its hooks, without an error, before it has restored the state."""

_newest_restored: RankContext | None = None
"""Context of the newest state that was restored in this process. A script may close its hooks and attach again."""


class StepLoop:
    """Counts the steps of a rank, and tells the parts of the hooks when one begins and ends. Training thread only.

    Args:
        sidecar: the parts that run in a rank. Without an agent there is none, and steps are only counted.
    """

    def __init__(
        self,
        timeline: Timeline,
        once: OnceLog,
        *,
        sidecar: Sidecar | None = None,
        open_step: OpenStep | None = None,
        state: Mapping[str, Stateful] | None = None,
        coordinates: Mapping[str, int] | None = None,
        check_data_position: bool = False,
        data: DataWindows | None = None,
    ) -> None:
        self._timeline = timeline
        self._once = once
        self._sidecar = sidecar
        self._open_step = OpenStep({}) if open_step is None else open_step
        self._state = state or {}
        self._coordinates = coordinates or {}
        self._check_data_position = check_data_position
        self.data = DataWindows({}, by_step=False, once=once) if data is None else data
        self._until = 0
        self._prepared = False
        self._has_restored = False
        self._restored = -1
        """Step of the state that was restored and that no step has followed yet; else -1."""
        self._draws: DrawsAfterRestore | None = None
        self._first_step = 0
        """Step at which the loop continues what was restored; 0 without that."""
        self._stopped = False
        self.next_step = 0

    def restore(self, until: int | None) -> int:
        """See :meth:`holdfast_hooks.Hooks.restore`."""
        global _newest_restored
        if until is not None:
            self._until = until
            if self._sidecar is not None:
                self._sidecar.steps_until(until)
        if not self._prepared and self._sidecar is not None:
            sidecar = self._sidecar
            context = self._prepare(sidecar)
            if sidecar.rank == 0:
                self.data.check(context)
            restored = start_from(
                context, self._state, rank=sidecar.rank, coordinates=self._coordinates, own=sidecar.own_states
            )
            self.data.begin(context, restored)
            _newest_restored, self._has_restored = context, True
            self._restored = restored
            if restored >= 0 and self._check_data_position:
                self._draws = DrawsAfterRestore(self._state)
            self._first_step = self.next_step = restored + 1
        return self.next_step

    def begin(self, step: int | None) -> int:
        """See :meth:`holdfast_hooks.Hooks.begin_step`."""
        if step is None:
            step = self.next_step
        if not self._prepared:
            self._begin_without_restore()
        if step < self.next_step:
            self._check_number(step)
        if self._restored >= 0:
            self._follow_restored()
        if self._open_step.step >= 0:
            self._once.warn("a step began inside another one, which is not counted", "call end_step() after each step")
        self._timeline.begin(step)
        self.next_step = step + 1
        if self._sidecar is not None:
            self._sidecar.follow_thread()
            self._open_step.begin(step)
        return step

    def end(self) -> bool:
        """See :meth:`holdfast_hooks.Hooks.end_step`."""
        open_step, sidecar = self._open_step, self._sidecar
        step = open_step.step
        if sidecar is None:
            return False
        if step < 0:
            if self._owes_restore_after_all():
                raise _refusal("ended a step")
            self._once.warn("end_step() was called outside of a step", "call begin_step() before each step")
            return self._stopped
        open_step.step = -1  # first: a signal handler may call sys.exit() at any place below
        if sidecar.end_step(step, self._until):
            self._stopped = True
        if step >= self.data.due:
            self.data.after(step)
        self._timeline.enter(Phase.IDLE)
        return self._stopped

    def steps(self, until: int, start: int) -> Iterator[int]:
        """See :meth:`holdfast_hooks.Hooks.steps`."""
        self.restore(until)
        timeline, sidecar, open_step, data = self._timeline, self._sidecar, self._open_step, self.data
        if sidecar is not None:
            sidecar.follow_thread()
        first = max(start, self._first_step)
        if sidecar is not None and first < until and first <= timeline.step:
            advice = f"give this loop its own steps, such as steps(until={until}, start={timeline.step + 1})"
            self._once.warn(_REPEATED, advice)
        if first < until and self._restored >= 0:
            self._follow_restored()
        # The same as begin() and end(), written out: two more frames in each step would cost as much as the rest.
        for step in range(first, until):
            if self._stopped:
                break
            timeline.begin(step)
            self.next_step = step + 1
            if sidecar is None:
                yield step
                continue
            open_step.begin(step)
            try:
                yield step
            except GeneratorExit:
                # The loop may be left by an error, too. Whether it was is known where the hooks are closed.
                open_step.leave()
                raise
            open_step.step = -1  # first: a signal handler may call sys.exit() at any place below
            self._stopped = sidecar.end_step(step, until)
            if step >= data.due:
                data.after(step)
        timeline.enter(Phase.IDLE)

    @property
    def has_begun(self) -> bool:
        """Whether the state was restored, or a step has begun."""
        return self._prepared

    @property
    def owes_restore(self) -> bool:
        """Whether the run is known to have a state to continue from that this process has not restored."""
        context = None if self._has_restored or self._sidecar is None else self._sidecar.start_state.known
        return context is not None and context.saves and has_starting_point(context) and context != _newest_restored

    def notice_without_restore(self, what: str) -> None:
        """Take note that a script trains before it restores. ``what``: what it has done.

        Raises ConfigurationError if the run has a state that is not restored. Else a restart would raise it, so the
        log says so now.
        """
        if self._owes_restore_after_all():
            raise _refusal(what)
        self._once.warn(f"the script {what} before hooks.restore(), which is refused after a restart", "call it first")

    def end_left_step(self) -> None:
        """Keep what a loop has done that was left early, or that never said which step is its last."""
        step, left = self._open_step.step, self._open_step.judge()
        if left is LeftStep.NONE:
            self._save_last_step()
        elif left is LeftStep.COMPLETE and self._sidecar is not None:
            self._sidecar.end_step(step, self._until, left=True)
            # In any other case the phase tells the other side that this rank left in the middle of a step.
            self._timeline.enter(Phase.IDLE)

    def _save_last_step(self) -> None:
        """Take the last checkpoint, if the step that ended last has not taken it and the state is still that of it."""
        is_over = self._stopped or self._restored >= 0 or self.next_step == self._until
        if not is_over and self._sidecar is not None and self._open_step.judge(ended=True) is LeftStep.COMPLETE:
            self._sidecar.save_ended(self.next_step - 1)
            self._timeline.enter(Phase.IDLE)

    def _prepare(self, sidecar: Sidecar) -> RankContext:
        """Make sure, before the first step, that the state can be saved at all; return where to start."""
        sidecar.before_first_step()
        context = sidecar.starting_context()
        sidecar.start_state.agree(self._state)
        self._prepared = True  # not before: who catches an error of the lines above must not train without the state
        lacks_position = self._check_data_position and context.saves and sidecar.rank == 0
        if lacks_position and lacks_data_position(self._state):
            self._once.warn(NO_POSITION, NO_POSITION_ADVICE)
        return context

    def _begin_without_restore(self) -> None:
        if self._sidecar is not None and has_starting_point(self._sidecar.starting_context()):
            raise _refusal("began a step")
        self.restore(None)

    def _owes_restore_after_all(self) -> bool:
        """Return whether a state is owed that this process has not restored. Waits until that is known."""
        if self._sidecar is not None:
            self._sidecar.starting_context()
        return self.owes_restore

    def _follow_restored(self) -> None:
        """Take note that the first step after the restored state begins now."""
        self._restored = -1
        if self._draws is not None and self._draws.found():
            self._once.warn(DRAWN, DRAWN_ADVICE)
        self._draws = None

    def _check_number(self, step: int) -> None:
        if self._restored >= 0:
            raise ConfigurationError(
                f"the state of step {self._restored} was restored, and the script began step {step}: begin the loop at"
                f" hooks.next_step, which is {self.next_step}"
            )
        self._once.warn(_REPEATED, f"begin_step({step}) was called after step {self.next_step - 1}: count on")


def _refusal(what: str) -> ConfigurationError:
    """Return the error of a script that trains without the state that its run has.

    To train from the script's own start would repeat steps, and then replace the good state of later ones.
    """
    return ConfigurationError(
        f"the run has a state to continue from, and the script {what} without it: call hooks.restore() before the loop"
        " and begin at hooks.next_step, or start the run with --from-scratch"
    )


_REPEATED = "a second loop repeats numbers of steps, so that a restart would leave some out"
