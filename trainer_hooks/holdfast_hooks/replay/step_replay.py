"""Computes a step again from the same state, on all ranks together, and finds who computed other bits.

In a step that is due, a rank calls the script's function and notes what it gives to others and what its state is then.
It puts the state back and calls the function again. If the two runs differ on any rank, all ranks run it a third time:
what two of three runs agree on is right. Training continues with the newest run in any case.

Every decision is the same on all ranks, because each is a collective: a rank that went on alone would leave the others
waiting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.identity import world_of_torch
from holdfast_hooks.replay import differences
from holdfast_hooks.restore.consensus import anywhere, everywhere, gathered
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.state.encoding import Image, Stateful
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1.session_pb2 import ReplayCheck, ReplayVote, StepRecord

if TYPE_CHECKING:
    from holdfast_hooks.replay.differences import Trace
    from holdfast_hooks.replay.step_state import StepState

_Result = TypeVar("_Result")

_WARM_UP_CALLS = 2
"""Calls of the function in this process before the first replay. Wrappers change their buckets after the first one."""
SKIPPED = "a step is not replayed"


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
        before = self._begin(step)
        return function() if before is None else self._replayed(function, before)

    def _begin(self, step: int) -> "StepState | None":
        """Return the state before the step if all ranks can put it back, else None."""
        reason, before = "", None
        image = Image([], (), ())
        try:
            # Here, because these import torch.
            from holdfast_hooks.progress.call_watch import can_watch_compiled
            from holdfast_hooks.replay.step_state import StepState

            slot = self._snapshots.complete_slot(step - 1)
            if not can_watch_compiled():
                reason = "this needs torch 2.13 or newer"
            elif slot is None:
                reason = f"there is no snapshot of step {step - 1} in memory: see the log for why none was taken"
            else:
                before = StepState(self._state, slot, self._own)
                image = before.image
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            reason = str(error) or repr(error)
        if reason:
            self._once.warn(SKIPPED, reason)
        return before if everywhere(not reason, image) else None

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
        differs = first.first_difference(second) is not None
        found = anywhere([differs], before.image)
        if differs if found is None else found[0]:
            result, third = again()
            self._judge(first, second, third, check, before.image)
        self._was_clean = self._was_clean or not check.unrepeatable
        check.duration_s = monotonic() - began_s
        self._timeline.values["replay"] = ReplayRecord(check)
        return result

    def _traced(self, function: "Callable[[], _Result]", before: "StepState") -> "tuple[_Result, Trace]":
        from holdfast_hooks.replay.contributions import Contributions

        found = Contributions()
        before.add_to(found, "before")
        with found:
            result = function()
        before.add_to(found, "after")
        return result, found.trace()

    def _can_undo(self, before: "StepState") -> bool:
        reason = ""
        try:
            before.check_after()
        except Exception as error:  # noqa: BLE001 - as above
            reason = str(error) or repr(error)
            self._once.warn(SKIPPED, reason)
        return everywhere(not reason, before.image)

    def _judge(self, first: "Trace", second: "Trace", third: "Trace", check: ReplayCheck, live: Image) -> None:
        """Find out with all ranks who computed something else, and put this rank's part of it into ``check``."""
        index = first.first_difference(second)
        own = differences.encode(index is not None, differences.history(first, second))
        ranks = gathered(own, live)
        culprits = differences.culprits([differences.decode(numbers) for numbers in ranks])
        is_known_to_repeat = len(ranks) == 1 and self._was_clean
        if 2 * len(culprits) > len(ranks) and not is_known_to_repeat:
            check.unrepeatable = self._is_off = True
            self._once.warn("no more steps are replayed", _unrepeatable(first, index))
            return
        world = world_of_torch()
        if index is not None and (0 if world is None else world[0]) in culprits:
            check.part = first.name_of(index)
            check.vote = _vote(first, second, third)


def _vote(first: "Trace", second: "Trace", third: "Trace") -> ReplayVote:
    if third.first_difference(second) is None:
        return session.REPLAY_VOTE_SECOND
    return session.REPLAY_VOTE_NEITHER if third.first_difference(first) is not None else session.REPLAY_VOTE_FIRST


def _unrepeatable(first: "Trace", index: int | None) -> str:
    what = "" if index is None else f", here first in {first.name_of(index)}"
    return (
        f"more than half of the ranks computed other bits for the same step{what}; the function must compute the same "
        "from the same state, and change nothing else: try torch.use_deterministic_algorithms(True)"
    )
