"""Tells whether a script continues where its data were, and with the random numbers that they come from."""

import sys
from collections.abc import Mapping

from holdfast_hooks.state.counterparts import parameters_of
from holdfast_hooks.state.encoding import Stateful
from holdfast_hooks.state.resumable_loader import ResumableLoader

NO_POSITION = "no object in `state` holds the position in the data"
NO_POSITION_ADVICE = (
    "after a restart the data begin where the script begins them. Wrap the loader in holdfast_hooks.ResumableLoader and"
    " add it to `state`, or pass check_data_position=False if each batch follows from the number of the step or from"
    " torch's random numbers"
)
DRAWN = "torch's random numbers were drawn between hooks.restore() and the first step, which may change all later ones"
DRAWN_ADVICE = (
    "a DataLoader draws a seed when its iterator is made. Wrap it in holdfast_hooks.ResumableLoader and add it to"
    " `state`, or pass check_data_position=False if an undisturbed run draws the same there"
)


class DrawsAfterRestore:
    """Notices numbers of torch's global generator that a script draws after its state was restored."""

    def __init__(self, state: Mapping[str, Stateful]) -> None:
        self._torch = sys.modules.get("torch")
        # It makes its iterator when the first batch is fetched, and that changes no random numbers.
        if any(isinstance(value, ResumableLoader) for value in state.values()):
            self._torch = None
        self._restored = None if self._torch is None else self._torch.get_rng_state()

    def found(self) -> bool:
        """Return whether the generator has moved since this was made."""
        return self._torch is not None and not self._torch.equal(self._torch.get_rng_state(), self._restored)


def lacks_data_position(state: Mapping[str, Stateful]) -> bool:
    """Return whether ``state`` has objects, and each is a model, an optimizer, a scheduler or a gradient scaler.

    Any other object may hold the position, and counts as if it does.
    """
    return bool(state) and all(map(is_of_training, state.values()))


def is_of_training(value: object) -> bool:
    """Return whether an object is a model, an optimizer, a scheduler or a gradient scaler: it holds no position."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kinds = (
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.optim.lr_scheduler.LRScheduler,
        torch.optim.lr_scheduler.ReduceLROnPlateau,
        torch.amp.GradScaler,
    )
    return isinstance(value, kinds) or bool(parameters_of(value))
