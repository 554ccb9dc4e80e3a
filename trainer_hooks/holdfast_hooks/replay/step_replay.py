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
from holdfast_hooks.phases import Phase
from holdfast_hooks.replay import culprits
from holdfast_hooks.replay.culprits import Trace
from holdfast_hooks.restore.consensus import everywhere, gathered, highest
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.state.encoding import Image, Stateful
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.limits import NAME_CHARACTERS
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1.session_pb2 import ReplayCheck, ReplayVote, StepRecord

if TYPE_CHECKING:
    from holdfast_hooks.replay.step_state import StepState

_Result = TypeVar("_Result")

_WARM_UP_CALLS = 2
"""Calls of the function in this process before the first replay. Wrappers change their buckets after the first one."""
_REFUSAL_CHARACTERS = 500
SKIPPED = "a step is not replayed"
_NO_STATE = Image([], (), ())


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
        snapshots: None: this rank takes none, so that it refuses each replay.
    """

    def __init__(
        self,
        *,
        state: Mapping[str, Stateful],
        own: OwnStates,
        snapshots: SnapshotTaker | None,
        timeline: Timeline,
        once: OnceLog,
    ) -> None:
        self._state = state
        self._own = own
        self._snapshots = snapshots
        self._timeline = timeline
        self._once = once
        self._calls = 0
        self._step = -1
        self._is_off = False
        self._was_clean = False
        self._was_undecided = False

    def run(self, function: "Callable[[], _Result]", every: int) -> "_Result":
        """Call ``function`` and return what it returns: see :meth:`holdfast_hooks.Hooks.replay`."""
        if self._snapshots is not None:
            self._snapshots.replay_every = 0 if self._is_off else every
        if not self._calls:
            self._agree(every)
        self._calls += 1
        step = self._timeline.step
        is_due = not self._is_off and step > 0 and step % every == 0 and step != self._step
        self._step = step
        if not is_due or self._calls <= _WARM_UP_CALLS:
            return function()
        phase = self._timeline.phase
        self._timeline.enter(Phase.CHECKPOINT)  # as a snapshot: to read a large state takes its time
        before: StepState | None = None
        changed = refusal = ""
        try:
            before = self._state_before(step)
            changed = before.changed()
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            refusal = str(error) or repr(error)
        live = _NO_STATE if before is None else before.image
        ranks = gathered([bool(refusal), bool(changed)], live)
        if before is None or any(refused for refused, _ in ranks):
            self._refuse(refusal)
        elif any(has_changed for _, has_changed in ranks):
            # The snapshot, or the state, may be wrong. So it does not take the place of the state.
            self._judge_changed(changed, [bool(has_changed) for _, has_changed in ranks])
        else:
            return self._replayed(function, before, phase)
        self._timeline.enter(phase)
        return function()

    def _agree(self, every: int) -> None:
        """Replay nothing if ranks would replay other steps: their collectives would not fit together."""
        most, least_negated = highest([every, -every], _NO_STATE) or (every, -every)
        if most != -least_negated:
            self._is_off = True
            self._refuse(f"ranks have every={-least_negated} and every={most}: give all the same to hooks.replay()")

    def _state_before(self, step: int) -> "StepState":
        """Return what is needed to put the state back. Raises UnsuitableStepError."""
        # Here, because these import torch.
        from holdfast_hooks.progress.call_watch import can_watch_compiled, touch_names
        from holdfast_hooks.replay.step_state import StepState, UnsuitableStepError

        if self._snapshots is None:
            raise UnsuitableStepError("it takes no snapshots: give a state to attach(), and --restore to `observe`")
        touch_names()
        slot = self._snapshots.complete_slot(step - 1)
        if not can_watch_compiled():
            raise UnsuitableStepError("this torch would turn torch.compile off for it: 2.13 does not")
        if slot is None:
            raise UnsuitableStepError(f"there is no snapshot of step {step - 1} in memory, or not yet")
        return StepState(self._state, slot, self._own)

    def _judge_changed(self, changed: str, ranks: "list[bool]") -> None:
        if self._are_too_many(sum(ranks), len(ranks)):
            self._refuse(f"{changed} is not what it was at the end of the step before: change it in the function alone")
        elif changed:
            part = f"state before the step: {changed}"
            self._note(ReplayCheck(part=part, vote=session.REPLAY_VOTE_NOT_TAKEN))

    def _replayed(self, function: "Callable[[], _Result]", before: "StepState", phase: int) -> "_Result":
        from holdfast_hooks.replay.contributions import Contributions

        values = dict(self._timeline.values)

        def run() -> "tuple[_Result, Contributions, int]":
            self._timeline.enter(phase)
            found = Contributions()
            with found:
                result = function()
            left_in = self._timeline.phase
            self._timeline.enter(Phase.CHECKPOINT)
            return result, found, left_in

        def again() -> tuple[_Result, Trace]:
            before.put_back()
            self._timeline.values.clear()
            self._timeline.values.update(values)
            result, found, _ = run()
            return result, before.trace_after(found)

        result, found, left_in = run()
        began_s = monotonic()
        first, refusal = Trace(), ""
        try:
            before.check_after()
            first = before.trace_after(found)
        except Exception as error:  # noqa: BLE001 - as above
            refusal = str(error) or repr(error)
        if everywhere(not refusal, before.image):
            result, second = again()
            check = ReplayCheck()
            if everywhere(first.first_difference(second) is None, before.image):
                self._was_clean = True
            else:
                result, third = again()
                check = self._judged(first, second, third, before.image)
            check.duration_s = monotonic() - began_s
            self._note(check)
        else:
            self._refuse(refusal)
        self._timeline.enter(left_in)
        return result

    def _judged(self, first: Trace, second: Trace, third: Trace, live: Image) -> ReplayCheck:
        """Find out with all ranks who computed something else; return this rank's part of it."""
        index = first.first_difference(second)
        vote = session.REPLAY_VOTE_UNSPECIFIED if index is None else _vote(first, second, third)
        own = culprits.encode(vote, culprits.history(first, second))
        told = [culprits.decode(numbers) for numbers in gathered(own, live)]
        named, is_certain = culprits.culprits_of(told)
        part = "" if index is None else first.name_of(index)
        world = world_of_torch()
        rank = 0 if world is None else world[0]
        is_undecided = all(told[one][0] == session.REPLAY_VOTE_NEITHER for one in named)
        is_noise = is_undecided and (self._was_undecided or not self._was_clean)
        self._was_undecided = is_undecided
        if is_noise or (is_certain and self._are_too_many(len(named), len(told))):
            self._is_off = True
            return ReplayCheck(refusal=self._noise(named, part) if rank == min(named) else "")
        if rank not in named:
            return ReplayCheck()
        return ReplayCheck(part=part, vote=vote if is_certain or is_undecided else session.REPLAY_VOTE_UNCLEAR)

    def _noise(self, named: Sequence[int], part: str) -> str:
        others = f" and {len(named) - 1} more" if len(named) > 1 else ""
        refusal = f"rank {named[0]}{others} did not compute the same again, first in {part}: see docs/own-trainer.md"
        self._once.warn("no more steps are replayed", refusal)
        return refusal

    def _are_too_many(self, ranks: int, world: int) -> bool:
        """Whether it is the training that does not repeat, and no rank is to blame.

        A rank alone is to blame if the training was seen to repeat.
        """
        return 2 * ranks > world and not (world == 1 and self._was_clean)

    def _refuse(self, refusal: str) -> None:
        """Report why this rank does not replay. Without a reason, another rank has one."""
        if refusal:
            self._once.warn(SKIPPED, refusal)
            self._note(ReplayCheck(refusal=" ".join(refusal.split())[:_REFUSAL_CHARACTERS]))

    def _note(self, check: ReplayCheck) -> None:
        check.part = check.part[:NAME_CHARACTERS]
        self._timeline.values["replay"] = ReplayRecord(check)


def _vote(first: Trace, second: Trace, third: Trace) -> ReplayVote:
    if third.first_difference(second) is None:
        return session.REPLAY_VOTE_SECOND
    return session.REPLAY_VOTE_NEITHER if third.first_difference(first) is not None else session.REPLAY_VOTE_FIRST
