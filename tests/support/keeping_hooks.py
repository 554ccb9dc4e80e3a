"""Hooks that keep the state of every step in this process, for loops that are tested without ranks."""

import copy
from typing import Any

import holdfast_hooks
from holdfast_hooks.state import random_states


class KeepingHooks:
    """Hooks that save at the end of every step, and restore what earlier hooks of the test have saved.

    Args:
        left_out: numbers of steps whose data are left out, by the number of the step that begins after them.
        saves_left_out: whether a step is saved after its state was asked to leave data out.
    """

    def __init__(
        self,
        state: dict[str, Any],
        saved: list[dict[str, Any]],
        stops_after: int | None,
        left_out: dict[int, int] | None = None,
        *,
        saves_left_out: bool = False,
    ) -> None:
        self.state, self.saved, self.stops_after = state, saved, stops_after
        self.left_out, self.saves_left_out = left_out or {}, saves_left_out
        self.step = -1
        self.reported: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []

    def restore(self, *, until: int | None = None) -> int:
        if not self.saved:
            self._leave_out(0)
            return 0
        saved = copy.deepcopy(self.saved[-1])
        for name, one in self.state.items():
            one.load_state_dict(saved["state"][name])
        random_states.restore(saved["random"])
        step = int(saved["step"]) + 1
        if not self.saves_left_out:
            self._leave_out(step)
        return step

    def begin_step(self, step: int) -> None:
        assert self.step == -1, "a step is open"
        self.step = step

    def end_step(self) -> bool:
        if self.saves_left_out:
            self._leave_out(self.step + 1)
        state = {name: copy.deepcopy(one.state_dict()) for name, one in self.state.items()}
        self.saved.append({"step": self.step, "state": state, "random": copy.deepcopy(random_states.capture())})
        ended, self.step = self.step, -1
        if not self.saves_left_out:
            self._leave_out(ended + 1)
        return ended == self.stops_after

    def enter(self, phase: holdfast_hooks.Phase) -> None:
        pass

    def report(self, **values: Any) -> None:
        self.reported.append({"step": self.step, **values})

    def log(self, numbers: dict[str, Any]) -> None:
        self.logged.append(dict(numbers))

    def close(self) -> None:
        pass

    def _leave_out(self, before: int) -> None:
        if steps := self.left_out.get(before):
            for one in self.state.values():
                if hasattr(one, "skip"):
                    one.skip(steps)
