"""Holdfast for loops that are written with Hugging Face's Accelerate.

::

    from holdfast_hooks.frameworks.accelerate import hold

    held = hold(accelerator)                       # after accelerator.prepare(...)
    for epoch in held.epochs(3):
        for batch in held.batches(loader):
            with accelerator.accumulate(model):
                ...
"""

import weakref
from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

import holdfast_hooks
from holdfast_hooks.errors import ConfigurationError
from holdfast_hooks.frameworks.held_training import HeldTraining
from holdfast_hooks.frameworks.sampling import Sampling
from holdfast_hooks.state.encoding import Stateful

ACCELERATOR_LISTS = ("_models", "_optimizers", "_schedulers")
"""Private attributes of Accelerator that this reads: what ``prepare()`` has prepared. A contract test checks them."""
_NAMES = {
    "loss": ("loss", "train_loss", "train/loss"),
    "validation_loss": ("eval_loss", "eval/loss", "val_loss", "val/loss", "validation_loss"),
    "grad_norm": ("grad_norm", "train/grad_norm"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate"),
    "tokens": ("tokens",),
}
"""Names under which scripts log the numbers that Holdfast watches."""
_newest: "weakref.ref[HeldTraining] | None" = None


def hold(
    accelerator: Accelerator, state: Mapping[str, Stateful] | None = None, *, until: int | None = None
) -> HeldTraining:
    """Connect a loop to Holdfast and restore what Holdfast has saved; return the loop's epochs and batches.

    Call it on all ranks after ``accelerator.prepare()``. It saves the models, optimizers and schedulers that were
    prepared, the gradient scaler, the random states and the position in the data.

    Args:
        accelerator: the script's accelerator.
        state: further objects to save and restore, by name.
        until: number of optimizer steps after which training ends, if the script knows it. The last one then ends with
            a checkpoint.

    Without Holdfast the epochs and batches are those of the script. Raises ConfigurationError if nothing was prepared,
    if a name in ``state`` is taken, or if what Holdfast has saved does not fit.
    """
    global _newest  # noqa: PLW0603 - a process has one session
    models = [accelerator.unwrap_model(model) for model in accelerator._models]
    optimizers = [getattr(one, "optimizer", one) for one in accelerator._optimizers]
    if not models or not optimizers:
        raise ConfigurationError("hold(accelerator): prepare a model and an optimizer first, by accelerator.prepare()")
    own: dict[str, Any] = _numbered("model", models)
    own |= _numbered("optimizer", [_named(one, models) for one in optimizers])
    own |= _numbered("scheduler", accelerator._schedulers)
    if accelerator.scaler is not None:
        own["scaler"] = accelerator.scaler
    held = HeldTraining(accelerator, optimizers, Sampling())
    own["position"] = held.position
    if taken := own.keys() & (state or {}).keys():
        raise ConfigurationError(f"hold(state=...): the name {min(taken)} is taken; use another")
    held.start(holdfast_hooks.attach(state={**(state or {}), **own}, check_data_position=False), until)
    _newest = weakref.ref(held)
    return held


class HoldfastTracker(GeneralTracker):  # type: ignore[misc]
    """Passes what a script logs to Holdfast: ``Accelerator(log_with=HoldfastTracker())``.

    ``accelerator.log()`` reports loss, gradient norm, learning rate and tokens under the names that scripts use for
    them, from every rank that calls it. It needs :func:`hold`, and does nothing without Holdfast.
    """

    name = "holdfast"
    requires_logging_directory = False
    main_process_only = False

    @property
    def tracker(self) -> None:
        """There is no object of another library behind this tracker."""
        return

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: Holdfast does not record a script's settings."""

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:  # noqa: ARG002
        """Report the numbers among ``values`` that Holdfast watches, for the step that is open."""
        held = None if _newest is None else _newest()
        if held is None:
            return
        found = {
            ours: next((values[name] for name in names if values.get(name) is not None), None)
            for ours, names in _NAMES.items()
        }
        held.hooks.report(**found)


def _numbered(name: str, things: list[Any]) -> dict[str, Any]:
    """Return things by name: the first has the name itself, the others a number as well."""
    return {name if index == 0 else f"{name}-{index}": thing for index, thing in enumerate(things)}


def _named(optimizer: Any, models: list[Any]) -> Any:
    """Return the optimizer's state by names, or by numbers if the names do not tell its parameters apart."""
    try:
        return holdfast_hooks.by_name(optimizer, models)
    except ValueError:
        return optimizer
