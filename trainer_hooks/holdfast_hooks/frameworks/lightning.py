"""The callback for Lightning's Trainer, of the package ``lightning`` or ``pytorch_lightning``.

::

    trainer = Trainer(callbacks=[LightningHoldfast()])

A step is one turn of the optimizers: with gradient accumulation several batches, with manual optimization every batch
in which an optimizer stepped. In a process that no agent has started, the callback does nothing at all.
"""

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import holdfast_hooks
from holdfast_hooks.frameworks.lightning_data import EpochData
from holdfast_hooks.frameworks.lightning_loops import FitSteps, missing_names
from holdfast_hooks.frameworks.lightning_state import TrainerProgress, state_of, why_not_saved
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.identity import Identity
from holdfast_hooks.phases import Phase
from holdfast_proto.rank_context import VARIABLE, RankContext

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger("holdfast_hooks")

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_LOSSES = ("train_loss", "loss", "train/loss", "training_loss")
_VALIDATION_LOSSES = ("val_loss", "validation_loss", "valid_loss", "val/loss")
_GRADIENT_NORMS = ("grad_norm", "grad_2.0_norm_total", "train/grad_norm")
"""Names under which scripts log these numbers. The first that was logged counts."""


def _callback_classes() -> tuple[Any, ...]:
    """Return ``Callback`` of the packages that the script has imported; else of the first that is installed."""
    imported = [package for package in _PACKAGES if package in sys.modules]
    for package in () if imported else _PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
            imported = [package]
            break
    if not imported:
        raise ModuleNotFoundError("LightningHoldfast needs lightning or pytorch_lightning: pip install lightning")
    return tuple(sys.modules[package].Callback for package in imported)


class LightningHoldfast(*_callback_classes()):  # type: ignore[misc] # which package it is, is known at run time only
    """Connects ``Trainer.fit()`` to Holdfast: telemetry, and under ``holdfast run`` also restarts without a loss.

    The first fit of a process is the one that Holdfast watches. A Trainer keeps one of these.

    Args:
        automatic: whether no line of the script asked for this. Then no failure in it ends the fit.
    """

    def __init__(self, *, automatic: bool = False) -> None:
        super().__init__()
        self._automatic = automatic
        self._hooks: Hooks | None = None
        self._losses: list[torch.Tensor | float] = []
        self._learning_rate: float | None = None
        self._has_validated = False

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Leave one of these in the Trainer: the line's, if there is also one of the entry point."""
        first = next(one for one in trainer.callbacks if isinstance(one, LightningHoldfast))
        trainer.callbacks = [one for one in trainer.callbacks if one is first or not isinstance(one, LightningHoldfast)]

    def on_fit_start(self, trainer: Any, *_: Any) -> None:
        """Attach to the agent, if one has started this process. Optimizers exist now, and the loops have not begun."""
        if VARIABLE not in os.environ:
            return
        global _is_used  # noqa: PLW0603 - a process is one rank, and a rank has one session
        if _is_used:
            _logger.warning("only the first fit() of a process is watched: start each fit in a run of its own")
            return
        _is_used = True
        try:
            self._attach(trainer)
        except Exception as error:
            if isinstance(error, ConfigurationError) and not self._automatic and not _is_observed(trainer):
                raise
            _logger.warning("this fit is not watched: %r", error)

    def _attach(self, trainer: Any) -> None:
        if missing := missing_names(trainer):
            raise ConfigurationError(f"this version of Lightning has no {missing[0]}: use lightning 2.6")
        data = EpochData()
        progress = TrainerProgress(trainer, data, lenient=self._automatic)
        with _rank_in_environment(trainer):
            context = RankContext.from_environment(rank=trainer.global_rank)
            saves = context is not None and context.saves
            reason = why_not_saved(trainer)
            if reason and saves:
                _logger.warning("this fit is watched but not saved, and a restart begins it again: %s", reason)
            device = trainer.strategy.root_device
            self._hooks = holdfast_hooks.attach(
                state=None if reason else state_of(trainer, progress),
                coordinates={"dp": trainer.global_rank} if trainer.world_size > 1 else None,
                device=str(device) if device.type == "cuda" else None,
            )
        saved = progress if saves and not reason else None
        FitSteps(trainer, self._hooks, data, saved, before_end=lambda: self._report(trainer)).follow()

    def _enter(self, phase: Phase) -> None:
        if self._hooks is not None:
            self._hooks.enter(phase)

    def on_sanity_check_start(self, *_: Any) -> None:
        """Count the batches of validation before the first step as evaluation."""
        self._enter(Phase.EVAL)

    def on_sanity_check_end(self, *_: Any) -> None:
        """Count the time until the first step as before."""
        self._enter(Phase.INIT)

    def on_validation_start(self, *_: Any) -> None:
        """Count the validation as evaluation."""
        self._enter(Phase.EVAL)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Note that the step has a loss on held-out data."""
        if not trainer.sanity_checking:
            self._has_validated = True
            self._enter(Phase.FORWARD_BACKWARD)

    def on_train_batch_start(self, *_: Any) -> None:
        """Count the time from now on to the training step."""
        self._enter(Phase.FORWARD_BACKWARD)

    def on_before_optimizer_step(self, _trainer: Any, _module: Any, optimizer: Any) -> None:
        """Count the time from now on to the optimizer, and note its learning rate."""
        if self._hooks is not None:
            self._hooks.enter(Phase.OPTIMIZER)
            self._learning_rate = optimizer.param_groups[0].get("lr")

    def on_train_batch_end(self, _trainer: Any, _module: Any, outputs: Any, *_: Any) -> None:
        """Note the loss of the batch."""
        if self._hooks is not None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                self._losses.append(loss)

    def _report(self, trainer: Any) -> None:
        """Report the numbers of the step that ends."""
        assert self._hooks is not None
        logged = trainer._logger_connector._callback_metrics
        try:
            self._hooks.report(
                loss=self._mean_loss(logged),
                grad_norm=_first(logged, _GRADIENT_NORMS),
                learning_rate=self._learning_rate,
                validation_loss=_first(logged, _VALIDATION_LOSSES) if self._has_validated else None,
            )
        except Exception as error:  # noqa: BLE001 - what the script logs may be anything
            _logger.debug("the numbers of a step are not reported: %r", error)
        if self._has_validated or _is_log_due(trainer, self._hooks.next_step):
            self._hooks.log(logged)
        self._has_validated = False
        self._losses = []

    def _mean_loss(self, logged: dict[str, Any]) -> "torch.Tensor | float | None":
        """Return the mean over the step's batches; a tensor stays on its device."""
        if not self._losses:
            found: torch.Tensor | float | None = _first(logged, _LOSSES)
            return found
        return self._losses[0] if len(self._losses) == 1 else sum(self._losses) / len(self._losses)


_is_used = False


def _is_observed(trainer: Any) -> bool:
    """Return whether Holdfast only watches this rank. Then nothing that Holdfast lacks may end the fit."""
    context = RankContext.from_environment(rank=trainer.global_rank)
    return context is not None and context.observed and not context.saves


def _is_log_due(trainer: Any, steps: int) -> bool:
    """Return whether Lightning's own loggers would get numbers about now: after some steps, or with the epoch."""
    epoch = trainer.fit_loop.epoch_progress.current
    every = trainer.log_every_n_steps  # 0: none but at the end of an epoch
    return epoch.started == epoch.completed or bool(every and steps % every == 0)


def _first(logged: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((logged[name] for name in names if name in logged), None)


@contextlib.contextmanager
def _rank_in_environment(trainer: Any) -> Iterator[None]:
    """Show the rank to the hooks if Lightning itself has started the ranks: it sets WORLD_SIZE, but no RANK."""
    identity = Identity.from_environment()
    if (identity.rank, identity.world_size) == (trainer.global_rank, trainer.world_size):
        yield
        return
    names = {
        "RANK": trainer.global_rank,
        "WORLD_SIZE": trainer.world_size,
        "LOCAL_RANK": trainer.local_rank,
        "LOCAL_WORLD_SIZE": trainer.num_devices,
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
