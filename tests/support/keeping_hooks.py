"""Hooks that keep the state of every step in this process, for loops that are tested without ranks."""

import copy
from typing import Any

import holdfast_hooks
from holdfast_hooks.state import random_states


class KeepingHooks:
    """Hooks that save at the end of every step, and restore what earlier hooks of the test have saved."""

    def __init__(self, state: dict[str, Any], saved: list[dict[str, Any]], stops_after: int | None) -> None:
        self.state, self.saved, self.stops_after = state, saved, stops_after
        self.step = -1
        self.reported: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []

    def restore(self, *, until: int | None = None) -> int:
        if not self.saved:
            return 0
        saved = copy.deepcopy(self.saved[-1])
        for name, one in self.state.items():
            one.load_state_dict(saved["state"][name])
        random_states.restore(saved["random"])
        return int(saved["step"]) + 1

    def begin_step(self, step: int) -> None:
        assert self.step == -1, "a step is open"
        self.step = step

    def end_step(self) -> bool:
        state = {name: copy.deepcopy(one.state_dict()) for name, one in self.state.items()}
        self.saved.append({"step": self.step, "state": state, "random": copy.deepcopy(random_states.capture())})
        ended, self.step = self.step, -1
        return ended == self.stops_after

    def enter(self, phase: holdfast_hooks.Phase) -> None:
        pass

    def report(self, **values: Any) -> None:
        self.reported.append({"step": self.step, **values})

    def log(self, numbers: dict[str, Any]) -> None:
        self.logged.append(dict(numbers))

    def close(self) -> None:
        pass
