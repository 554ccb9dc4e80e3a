"""Computes a step again from the same state, on all ranks together, and finds who computed other bits.

In a step that is due, a rank calls the script's function and notes what it gives to others and what its state is then.
It puts the state back and calls the function again. If the two runs differ on any rank, all ranks run it a third time:
what two of three runs agree on is right. Training continues with the newest run in any case.

Every decision is the same on all ranks, because each is a collective: a rank that went on alone would leave the others
waiting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.identity import world_of_torch
from holdfast_hooks.replay import culprits
from holdfast_hooks.replay.culprits import GroupHistory
from holdfast_hooks.restore.consensus import anywhere, everywhere, gathered
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.state.encoding import Image, Stateful
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1.session_pb2 import ReplayCheck, ReplayVote, StepRecord

if TYPE_CHECKING:
    from holdfast_hooks.replay.culprits import Trace
    from holdfast_hooks.replay.step_state import StepState

_Result = TypeVar("_Result")

_WARM_UP_CALLS = 2
"""Calls of the function in this process before the first replay. Wrappers change their buckets after the first one."""
SKIPPED = "a step is not replayed"
_UNREPEATABLE = (
    "more than half of the ranks differ; the function must compute the same from the same state, and nothing else may "
    "change the state: try torch.use_deterministic_algorithms(True)"
)
_NOT_TAKEN = session.REPLAY_VOTE_NOT_TAKEN


@dataclass(frozen=True)
class ReplayRecord:
    """The part of a step's record that says what its replay showed."""

    check: ReplayCheck

    def put(self, record: StepRecord) -> bool:
        """Put it into the record (reporter thread)."""
        record.replay.CopyFrom(self.check)
        return True


class StepReplay:
    """Calls the script's function once a step, and in every N-th step twice. Training thread only.

    Args:
        own: parts of the hooks that the function may change.
    """

    def __init__(
        self,
        *,
        state: Mapping[str, Stateful],
        own: OwnStates,
        snapshots: SnapshotTaker,
        timeline: Timeline,
        once: OnceLog,
    ) -> None:
        self._state = state
        self._own = own
        self._snapshots = snapshots
        self._timeline = timeline
        self._once = once
        self._calls = 0
        self._is_off = False
        self._was_clean = False

    def run(self, function: "Callable[[], _Result]", every: int) -> "_Result":
        """Call ``function`` and return what it returns: see :meth:`holdfast_hooks.Hooks.replay`."""
        self._snapshots.replay_every = 0 if self._is_off else every
        self._calls += 1
        step = self._timeline.step
        is_due = not self._is_off and step > 0 and step % every == 0
        if not is_due or self._calls <= _WARM_UP_CALLS:
            return function()
        before, changed, reason = None, "", ""
        try:
            before = self._state_before(step)
            changed = before.changed()
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            reason = str(error) or repr(error)
            self._once.warn(SKIPPED, reason)
        live = before.image if before is not None else Image([], (), ())
        answers = anywhere([bool(reason), bool(changed)], live) or [bool(reason), bool(changed)]
        if before is None or answers[0]:
            return function()
        if answers[1]:
            # Either may be wrong, and the snapshot must not take the place of the state then.
            self._note(self._judged(bool(changed), (), f"state before the step: {changed}", _NOT_TAKEN, live), 0.0)
            return function()
        return self._replayed(function, before)

    def _state_before(self, step: int) -> "StepState":
        """Return what is needed to put the state back. Raises UnsuitableStepError."""
        # Here, because these import torch.
        from holdfast_hooks.progress.call_watch import can_watch_compiled, touch_names
        from holdfast_hooks.replay.step_state import StepState, UnsuitableStepError

        touch_names()
        slot = self._snapshots.complete_slot(step - 1)
        if not can_watch_compiled():
            raise UnsuitableStepError("this needs torch 2.13 or newer")
        if slot is None:
            raise UnsuitableStepError(f"there is no snapshot of step {step - 1} in memory, or not yet")
        return StepState(self._state, slot, self._own)

    def _replayed(self, function: "Callable[[], _Result]", before: "StepState") -> "_Result":
        values = dict(self._timeline.values)
        result, first = self._traced(function, before)
        began_s = monotonic()
        if not self._can_undo(before):
            return result

        def again() -> "tuple[_Result, Trace]":
            before.put_back()
            self._timeline.values.clear()
            self._timeline.values.update(values)
            return self._traced(function, before)

        result, second = again()
        check = ReplayCheck()
        index = first.first_difference(second)
        if not everywhere(index is None, before.image):
            result, third = again()
            part = "" if index is None else first.name_of(index)
            vote = _vote(first, second, third)
            check = self._judged(index is not None, culprits.history(first, second), part, vote, before.image)
        self._was_clean = self._was_clean or not check.unrepeatable
        self._note(check, monotonic() - began_s)
        return result

    def _note(self, check: ReplayCheck, duration_s: float) -> None:
        check.duration_s = duration_s
        self._timeline.values["replay"] = ReplayRecord(check)

    def _traced(self, function: "Callable[[], _Result]", before: "StepState") -> "tuple[_Result, Trace]":
        from holdfast_hooks.replay.contributions import Contributions

        found = Contributions()
        with found:
            result = function()
        before.add_to(found)
        return result, found.trace()

    def _can_undo(self, before: "StepState") -> bool:
        reason = ""
        try:
            before.check_after()
        except Exception as error:  # noqa: BLE001 - as above
            reason = str(error) or repr(error)
            self._once.warn(SKIPPED, reason)
        return everywhere(not reason, before.image)

    def _judged(
        self,
        differs: bool,
        histories: Sequence[GroupHistory],
        part: str,
        vote: ReplayVote,
        live: Image,
    ) -> ReplayCheck:
        """Find out with all ranks who computed something else; return this rank's part of it."""
        ranks = gathered(culprits.encode(differs, histories), live)
        named = culprits.culprits_of([culprits.decode(numbers) for numbers in ranks])
        is_known_to_repeat = len(ranks) == 1 and self._was_clean
        if 2 * len(named) > len(ranks) and not is_known_to_repeat:
            self._is_off = True
            self._once.warn("no more steps are replayed", f"{_UNREPEATABLE}; here first: {part or 'nothing'}")
            return ReplayCheck(unrepeatable=True)
        world = world_of_torch()
        is_culprit = (0 if world is None else world[0]) in named
        return ReplayCheck(part=part, vote=vote) if is_culprit else ReplayCheck()


def _vote(first: "Trace", second: "Trace", third: "Trace") -> ReplayVote:
    if third.first_difference(second) is None:
        return session.REPLAY_VOTE_SECOND
    return session.REPLAY_VOTE_NEITHER if third.first_difference(first) is not None else session.REPLAY_VOTE_FIRST
