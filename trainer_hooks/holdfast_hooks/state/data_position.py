"""Tells whether the state of a script holds the position in its data."""

import sys
from collections.abc import Mapping

from holdfast_hooks.state.counterparts import parameters_of
from holdfast_hooks.state.encoding import Stateful

NO_POSITION = "no object in `state` holds the position in the data"
NO_POSITION_ADVICE = (
    "after a restart the data begin where the script begins them. Add the sampler or the loader to `state`, or pass"
    " check_data_position=False if each batch follows from the number of the step or from torch's random numbers"
)


def lacks_data_position(state: Mapping[str, Stateful]) -> bool:
    """Return whether ``state`` has objects, and each is a model, an optimizer, a scheduler or a gradient scaler.

    Any other object may hold the position, and counts as if it does.
    """
    return bool(state) and all(map(_is_of_training, state.values()))


def _is_of_training(value: object) -> bool:
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
