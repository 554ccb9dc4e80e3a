"""Leaves data out: those of windows that a bad loss, or a person, has named.

The data of a run are numbered by the steps that would train on them if none were left out. How many a run has left out
so far is part of its state. So the data of the next step are known after any restart, and a window is left out once,
exactly where it begins.
"""

import sys
from collections.abc import Mapping
from typing import Any, Protocol, cast

from holdfast_hooks.hook_errors import ConfigurationError, OnceLog
from holdfast_hooks.state.data_position import is_of_training
from holdfast_hooks.state.encoding import Stateful
from holdfast_proto.left_out import Windows, data_of, joined, next_window
from holdfast_proto.rank_context import RankContext

KEY = "left_out"
"""Key of the number of data that were left out, next to the random states of a snapshot."""

NEVER = sys.maxsize

_FIX = (
    "give `state` an object with a method skip(steps), such as holdfast_hooks.ResumableLoader, or pass"
    " data_by_step=True and take the data of hooks.data_of(step)"
)


class Skippable(Protocol):
    """An object of ``state`` that holds the position in the data, and can leave data out."""

    def skip(self, steps: int) -> None:
        """Do not train on the data of the next ``steps`` steps."""


class DataWindows:
    """Leaves data out between steps, on all objects of ``state`` that hold a position. Training thread only.

    Args:
        by_step: whether the script takes the data of each step by the number that :meth:`data_of` returns.
    """

    def __init__(self, state: Mapping[str, Stateful], *, by_step: bool, once: OnceLog) -> None:
        self.left_out = 0
        """Number of steps whose data were left out so far."""
        self.due = NEVER
        """Step after whose end :meth:`after` must be called next."""
        self._state = state
        self._by_step = by_step
        self._is_asked = self._rolls_back = False
        self._once = once
        self._windows: Windows = ()
        self._counted: list[tuple[Any, int]] = []
        """Loaders whose batches of one step are counted, with their counts before it."""

    @property
    def _positions(self) -> list[Skippable]:
        # A module may well have a part called skip.
        held = [one for one in self._state.values() if not is_of_training(one)]
        return [cast(Skippable, one) for one in held if callable(getattr(one, "skip", None))]

    @property
    def _can_skip(self) -> bool:
        return self._by_step or bool(self._positions)

    def check(self, context: RankContext) -> None:
        """Raise ConfigurationError if data may have to be left out, and the script cannot do that.

        Only one rank is asked: the others may have no data, as in the middle of a pipeline.
        """
        self._is_asked = True
        if context.rolls_back and context.saves and not self._can_skip:
            raise _refusal('the run has the policy "roll_back"')

    def begin(self, context: RankContext, step: int) -> None:
        """Leave out what follows on the state from which the run starts, and note when the next window is due.

        ``step``: last one that is not repeated; -1: the run starts from the seed. Raises ConfigurationError if the
        script of the rank that was asked cannot leave out what lies ahead, or if a roll-back would leave out other data
        than it says.
        """
        self._windows = joined(context.left_out)
        self._rolls_back = context.rolls_back and context.saves
        if self._rolls_back:
            self._check_numbers(step)
        lacks_position = self._is_asked and not self._can_skip
        if lacks_position and next_window(step + 1 + self.left_out, self._windows) is not None:
            raise _refusal("data are to be left out")
        self._leave_out(step)
        if context.rolls_back or self._windows:
            loaders: list[Any] = [one for one in self._positions if hasattr(one, "batches_per_step")]
            self._counted = [(one, one.fetched) for one in loaders]
        if self._counted:
            self.due = step + 1

    def data_of(self, step: int) -> int:
        """Return the number of the data for a step: the one under way, or the next one."""
        return step + self.left_out

    def after(self, step: int) -> None:
        """Leave out what begins after ``step``, which has ended.

        Raises ConfigurationError if a loader would leave out too little.
        """
        self._check_batches(step)
        self._leave_out(step)

    def _leave_out(self, step: int) -> None:
        data = step + 1 + self.left_out
        window = next_window(data, self._windows)
        if window is not None and window[0] == data:
            for position in self._positions:
                position.skip(window[1])
            self.left_out += window[1]
            window = next_window(data + window[1], self._windows)
        self.due = NEVER if window is None else window[0] - self.left_out - 1

    def state_dict(self) -> dict[str, Any] | None:
        """Return how many were left out, if any were."""
        return {"steps": self.left_out} if self.left_out else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load what :meth:`state_dict` returned."""
        steps = 0 if state is None else state["steps"]
        if type(steps) is not int or steps < 0:
            raise ValueError(f"{steps!r} is no number of steps whose data were left out")
        self.left_out = steps

    def _check_numbers(self, step: int) -> None:
        """Raise ConfigurationError if the state has left out other data than the windows say.

        A roll-back numbers the data by the windows alone, so it would name other data than those that were bad. A state
        that was saved at the end of a loop may have left out what follows on it already.
        """
        said = [data_of(one, self._windows) - one for one in (step, step + 1)]
        if self.left_out not in said:
            raise ConfigurationError(
                f"the state of step {step} has left out the data of {self.left_out} steps, and the records of its"
                f" checkpoints say {said[0]}: a roll-back would leave out other data: bring the files history-NNNN.json"
                ' back from a copy, or start without the policy "roll_back"'
            )

    def _check_batches(self, step: int) -> None:
        """Compare once how many batches a step has fetched with what its loader expects: windows rely on it."""
        counted, self._counted = self._counted, []
        for loader, before in counted:
            fetched, expected = loader.fetched - before, loader.batches_per_step
            if fetched in (0, expected):
                continue
            what = f"step {step} has fetched {fetched} batches, and its ResumableLoader expects {expected}"
            advice = f"pass batches_per_step={fetched}, else windows of data have another length"
            if self._rolls_back and fetched > expected:  # fewer are usual at the end of an epoch
                raise ConfigurationError(f"{what}: {advice}")
            self._once.warn(what, advice)


def _refusal(why: str) -> ConfigurationError:
    return ConfigurationError(f"{why}, and no object in `state` can leave data out: {_FIX}")
