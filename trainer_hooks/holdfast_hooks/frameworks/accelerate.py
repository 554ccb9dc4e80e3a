"""Holdfast for loops that are written with Hugging Face's Accelerate.

::

    from holdfast_hooks.frameworks.accelerate import hold

    held = hold(accelerator)                       # after accelerator.prepare(...)
    for epoch in held.epochs(3):
        for batch in held.batches(loader):
            with accelerator.accumulate(model):
                ...
"""

import logging
import weakref
from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

import holdfast_hooks
from holdfast_hooks.frameworks.held_training import HeldTraining
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.state.encoding import Stateful
from holdfast_hooks.state.sampling import Sampling
from holdfast_proto.rank_context import RankContext

_log = logging.getLogger("holdfast_hooks")

ACCELERATOR_LISTS = ("_models", "_optimizers", "_schedulers", "_custom_objects")
"""Private attributes of Accelerator that this reads: what ``prepare()`` has prepared, and what
``register_for_checkpointing()`` has registered. A contract test checks them."""
_NAMES = {
    "loss": ("loss", "train_loss", "train/loss"),
    "validation_loss": ("eval_loss", "eval/loss", "val_loss", "val/loss", "validation_loss"),
    "grad_norm": ("grad_norm", "train/grad_norm"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate"),
    "tokens": ("tokens",),
}
"""Names under which scripts log the numbers that Holdfast watches."""
_newest: "weakref.ref[HeldTraining] | None" = None
_held_in: RankContext | None = None
"""What the rank was when a training was connected that Holdfast saves."""


def hold(
    accelerator: Accelerator, state: Mapping[str, Stateful] | None = None, *, until: int | None = None
) -> HeldTraining:
    """Connect a loop to Holdfast and restore what Holdfast has saved; return the loop's epochs and batches.

    Call it on all ranks after ``accelerator.prepare()`` and ``accelerator.register_for_checkpointing()``. It saves the
    models, optimizers and schedulers that were prepared, the objects that were registered, the gradient scaler, the
    random states and the position in the data. Under DeepSpeed, FSDP and others that spread a model over the ranks it
    saves nothing, and says so: use Accelerate's own checkpoints there.

    Args:
        accelerator: the script's accelerator.
        state: further objects to save and restore, by name.
        until: number of optimizer steps after which training ends, if the script knows it. The last one then ends with
            a checkpoint.

    Without Holdfast the epochs and batches are those of the script. Under ``holdfast run`` the first training of a
    process is connected. Later ones run as without Holdfast, and the log says so: a restart could not tell them apart.

    Raises ConfigurationError if nothing was prepared, if a name in ``state`` is taken, or if what Holdfast has saved
    does not fit. The batches raise it if something was prepared or registered later, because it would not be saved.
    """
    global _newest, _held_in  # noqa: PLW0603 - a process has one session
    models = [accelerator.unwrap_model(model) for model in accelerator._models]
    optimizers = [getattr(one, "optimizer", one) for one in accelerator._optimizers]
    if not models or not optimizers:
        raise ConfigurationError("hold(accelerator): prepare a model and an optimizer first, by accelerator.prepare()")
    held = HeldTraining(accelerator, optimizers, Sampling())
    context = RankContext.from_environment(rank=accelerator.process_index)
    if context is not None and context.saves:
        if context == _held_in:
            _log.warning("hold(accelerator): this process has held a training before: this one runs without Holdfast")
            held.start(holdfast_hooks.Hooks.unattached(), until)
            return held
        _held_in = context
    saved = None
    if _has_whole_models(accelerator):
        own = _own_state(accelerator, models, optimizers, state or {}) | {"position": held.position}
        if taken := own.keys() & (state or {}).keys():
            raise ConfigurationError(f"hold(state=...): the name {min(taken)} is taken; use another")
        saved = {**(state or {}), **own}
    held.start(holdfast_hooks.attach(state=saved, check_data_position=False), until)
    if saved is not None and context is not None and context.saves:
        known = frozenset(id(one) for one in (*_checkpointed(accelerator), *saved.values()))
        held.before_pass = lambda: _refuse_late(accelerator, known)
    _newest = weakref.ref(held)
    return held


def _checkpointed(accelerator: Accelerator) -> list[Any]:
    return [*accelerator._optimizers, *accelerator._schedulers, *accelerator._custom_objects]


def _refuse_late(accelerator: Accelerator, known: frozenset[int]) -> None:
    late = next((one for one in _checkpointed(accelerator) if id(one) not in known), None)
    if late is not None:
        raise ConfigurationError(
            f"hold(accelerator): an object of type {type(late).__name__} was prepared or registered after hold(), and a"
            " restart would not bring it back: call prepare() and register_for_checkpointing() before hold()"
        )


def _own_state(
    accelerator: Accelerator, models: list[Any], optimizers: list[Any], others: Mapping[str, Stateful]
) -> dict[str, Any]:
    """Return what the accelerator has, by name, without ``others``, which the script has named itself."""
    named = {id(thing) for thing in others.values()}
    own: dict[str, Any] = _numbered("model", models)
    own |= _numbered("optimizer", [_named(one, models) for one in optimizers])
    own |= _numbered("scheduler", accelerator._schedulers)
    own |= _numbered("registered", [one for one in accelerator._custom_objects if id(one) not in named])
    if accelerator.scaler is not None:
        own["scaler"] = accelerator.scaler
    return own


def _has_whole_models(accelerator: Accelerator) -> bool:
    """Return whether each rank has whole models and optimizers. Of others, Holdfast saves nothing."""
    kind = accelerator.distributed_type.value
    if kind == "NO" or kind.startswith("MULTI_"):
        return True
    context = RankContext.from_environment(rank=accelerator.process_index)
    if context is not None and context.saves:
        _log.warning(
            "hold(accelerator): this training is watched but not saved, and a restart begins it again: %s spreads the"
            " state over the ranks. Load the newest of Accelerate's own checkpoints before hold()",
            kind,
        )
    return False


class HoldfastTracker(GeneralTracker):  # type: ignore[misc]
    """Passes what a script logs to Holdfast: ``Accelerator(log_with=HoldfastTracker())``.

    Holdfast shows the numbers of ``accelerator.log()`` under the names that the script gives them, from every rank that
    calls it. It watches loss, gradient norm, learning rate and tokens, under the names that scripts use for them. The
    tracker needs :func:`hold`, and does nothing without Holdfast.
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
        """Show the numbers in ``values``, and report those that Holdfast watches, for the step that is open."""
        held = None if _newest is None else _newest()
        if held is None:
            return
        found = {
            ours: next((values[name] for name in names if values.get(name) is not None), None)
            for ours, names in _NAMES.items()
        }
        held.hooks.report(**found)
        held.hooks.log(values)


def _numbered(name: str, things: list[Any]) -> dict[str, Any]:
    """Return things by name: the first has the name itself, the others a number as well."""
    return {name if index == 0 else f"{name}-{index}": thing for index, thing in enumerate(things)}


def _named(optimizer: Any, models: list[Any]) -> Any:
    """Return the optimizer's state by names, or by numbers if the names do not tell its parameters apart."""
    try:
        return holdfast_hooks.by_name(optimizer, models)
    except ValueError:
        return optimizer
