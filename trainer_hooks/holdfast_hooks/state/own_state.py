"""What the hooks themselves keep in each snapshot, next to the random states."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from holdfast_hooks.state import random_states


class OwnState(Protocol):
    """A part of the hooks that a restart must bring back."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return plain numbers and lists of them; None: there is nothing to keep."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load what :meth:`state_dict` returned; None: the snapshot has nothing of it. Raises ValueError."""


OwnStates: TypeAlias = Mapping[str, OwnState]
"""By the key in the snapshot."""


def capture(own: OwnStates) -> dict[str, Any]:
    """Return what is to be kept, by key."""
    states = ((key, one.state_dict()) for key, one in own.items())
    return {key: state for key, state in states if state is not None}


def restore(own: OwnStates, saved: Mapping[str, Any]) -> None:
    """Bring back what the ``saved`` state of a process has. Raises ValueError if that is damaged."""
    of_process = saved[random_states.KEY]
    for key, one in own.items():
        one.load_state_dict(of_process.get(key))
