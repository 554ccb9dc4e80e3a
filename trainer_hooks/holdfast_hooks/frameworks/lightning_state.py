"""The state of a Lightning fit, as Lightning's own checkpoints have it, and what they leave out."""

import inspect
from typing import TYPE_CHECKING, Any

from holdfast_hooks.frameworks import lightning_data
from holdfast_hooks.frameworks.lightning_data import EpochData
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.state.encoding import Stateful, encode_state
from holdfast_hooks.state.named_optimizer import by_name

# Metrics of a Lightning fit in the middle of an epoch, which Lightning's own checkpoints leave out.
#
# Callbacks act on them at the end of the epoch: a ModelCheckpoint keeps the best model by a mean over all batches.


class EpochMetrics:
    """Saves and restores what has been logged so far. Lightning's names are private; a contract test holds them."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._pending: dict[str, dict[str, Any]] = {}
        """Saved sums of logged values that the restored fit has not logged yet, by the key of the result."""

    def state_dict(self) -> dict[str, Any]:
        """Return the newest values, the sums of logged values, and the states of metric objects in the module."""
        connector = self._trainer._logger_connector
        return {
            "callback": dict(connector._callback_metrics),
            "logged": dict(connector._logged_metrics),
            "progress_bar": dict(connector._progress_bar_metrics),
            "function": connector._current_fx,
            "first_batch": connector._first_loop_iter,
            "sums": self._sums(),
            "metrics": {name: _metric_state(metric) for name, metric in self._metrics() if metric._update_count},
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the values. Sums are restored when the fit logs their value for the first time."""
        connector = self._trainer._logger_connector
        connector._callback_metrics = dict(saved["callback"])
        connector._logged_metrics = dict(saved["logged"])
        connector._progress_bar_metrics = dict(saved["progress_bar"])
        connector._current_fx = saved["function"]
        connector._first_loop_iter = saved["first_batch"]
        self._pending = dict(saved["sums"])
        if self._pending:
            self._restore_sums_when_logged()
        for name, metric in self._metrics():
            if name in saved["metrics"]:
                _load_metric(metric, saved["metrics"][name])

    def _sums(self) -> dict[str, dict[str, Any]]:
        results = self._trainer.fit_loop.epoch_loop._results
        return {
            key: _metric_state(result)
            for key, result in results.items()
            if result.is_tensor and result.meta.on_epoch and not result.has_reset
        } | self._pending

    def _restore_sums_when_logged(self) -> None:
        """Lightning makes the object of a logged value at the first call of ``log()``. Fill it just after that."""
        results = self._trainer.fit_loop.epoch_loop._results
        update, reset = results.update_metrics, results.reset

        def update_metrics(key: str, value: Any, batch_size: int) -> None:
            if (saved := self._pending.pop(key, None)) is not None:
                _load_metric(results[key], saved)
            update(key, value, batch_size)

        def reset_results(metrics: bool | None = None, fx: str | None = None) -> None:
            for key in [key for key in self._pending if fx is None or key.startswith(f"{fx}.")]:
                del self._pending[key]  # the sums begin again, such as at the end of the epoch
            reset(metrics, fx)

        results.update_metrics, results.reset = update_metrics, reset_results

    def _metrics(self) -> list[tuple[str, Any]]:
        """Return torchmetrics' objects in the module, by name."""
        modules = self._trainer.lightning_module.named_modules()
        return [(name, module) for name, module in modules if hasattr(module, "metric_state")]


def _metric_state(metric: Any) -> dict[str, Any]:
    values = {name: list(value) if isinstance(value, list) else value for name, value in metric.metric_state.items()}
    return {"updates": metric._update_count, "values": values}


def _load_metric(metric: Any, saved: dict[str, Any]) -> None:
    for name, value in saved["values"].items():
        device: Any = getattr(getattr(metric, name, None), "device", None)
        setattr(metric, name, value.to(device) if device is not None and hasattr(value, "to") else value)
    metric._update_count = saved["updates"]
    metric._computed = None


if TYPE_CHECKING:
    import torch

_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
"""Strategies under which every rank has whole parameters, and a test has shown that a restart is exact."""
_TREE = "saved"


def why_not_saved(trainer: Any) -> str:
    """Return why the state of this fit cannot be saved, or an empty string."""
    strategy = type(trainer.strategy).__name__
    if strategy not in _STRATEGIES:
        return f"{strategy} is not among {', '.join(_STRATEGIES)}"
    if any(hasattr(optimizer, "consolidate_state_dict") for optimizer in trainer.optimizers):
        return "an optimizer spreads its state over ranks"
    if _takes_the_iterator(trainer.lightning_module.training_step):
        return "training_step(dataloader_iter) fetches its batches itself"
    return ""


def state_of(trainer: Any, progress: "TrainerProgress") -> dict[str, Stateful]:
    """Return the ``state`` for :func:`holdfast_hooks.attach`: module, optimizers, and everything else of the fit.

    Everything else comes last: it is loaded through Lightning's hooks, which may look at the module.
    """
    module = trainer.lightning_module
    state: dict[str, Stateful] = {"model": module if module.strict_loading else _LenientModule(module)}
    for index, optimizer in enumerate(trainer.optimizers):
        try:
            named: Stateful = by_name(optimizer, module)
        except ValueError:  # it has parameters of its own, such as those of a loss function
            named = optimizer
        state["optimizer" if len(trainer.optimizers) == 1 else f"optimizer_{index}"] = named
    return {**state, "trainer": progress}


class TrainerProgress:
    """Everything of a fit but module and optimizers: loops, schedulers, callbacks, precision, data, metrics.

    It is empty until the first step has ended, as an optimizer's state is. Then a saved state of any form fits.

    Args:
        lenient: continue to train if a value cannot be saved. The hooks then report it once, and take no snapshot.
    """

    def __init__(self, trainer: Any, data: EpochData, *, lenient: bool = False) -> None:
        self.has_stepped = False
        """Whether a step has ended. The state then has all its parts."""
        self.restored: dict[str, Any] | None = None
        """State that was loaded and that the loops have not loaded yet."""
        self.left_out = 0
        """Steps whose data are left out before the next step."""
        # With manual optimization, nothing tells how many batches a step takes.
        if trainer.lightning_module.automatic_optimization:
            self.skip = self._skip
        self._trainer = trainer
        self._data = data
        self._lenient = lenient
        self._metrics = EpochMetrics(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; its tensors are live."""
        return {_TREE: self._tree() if self.has_stepped else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load everything through Lightning's connector, as from a checkpoint file. The loops continue later."""
        saved = state[_TREE]
        trainer, connector = self._trainer, self._trainer._checkpoint_connector
        strategy = trainer.strategy
        connector._loaded_checkpoint = {
            "state_dict": strategy.lightning_module_state_dict(),
            "optimizer_states": [strategy.optimizer_state(optimizer) for optimizer in trainer.optimizers],
            **{owner.CHECKPOINT_HYPER_PARAMS_KEY: dict(owner.hparams) for owner in _with_hyperparameters(trainer)},
            **saved["checkpoint"],
        }
        try:
            connector.restore_model()
            connector.restore_datamodule()
            connector.restore_callbacks()
            connector.restore_precision_plugin_state()
            connector.restore_loops()
            connector.restore_lr_schedulers()
        finally:
            connector._loaded_checkpoint = {}
        for callback in _with_last_save(trainer):  # the script may have others than when the state was saved
            if callback.state_key in saved["last_saves"]:
                callback._last_global_step_saved = saved["last_saves"][callback.state_key]
        trainer.should_stop = saved["should_stop"]
        self.restored, self.left_out = saved, saved.get("left_out", 0)  # older states have none

    def _skip(self, steps: int) -> None:
        """Leave out the data of the next ``steps`` steps."""
        self.left_out += steps

    def check(self) -> None:
        """Raise ConfigurationError if a value of the state cannot be saved."""
        try:
            tree = self._tree()
        except Exception:  # noqa: BLE001 - hooks of the user may need what the first step makes
            return
        try:
            encode_state({"trainer": tree})
        except TypeError as error:
            if not self._lenient:
                raise ConfigurationError(str(error)) from None

    def load_loops(self) -> None:
        """Load the progress of the loops once more, after Lightning's own steps to resume, and end those."""
        assert self.restored is not None
        loop = self._trainer.fit_loop
        loop.load_state_dict(self.restored["checkpoint"]["loops"]["fit_loop"])
        end_resume(loop)
        self._metrics.load_state_dict(self.restored["metrics"])

    def _tree(self) -> dict[str, Any]:
        trainer = self._trainer
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        for owner in _with_hyperparameters(trainer):  # the script gives them, and they may be of any type
            for name in ("KEY", "NAME", "TYPE"):
                checkpoint.pop(getattr(owner, f"CHECKPOINT_HYPER_PARAMS_{name}"), None)
        checkpoint.pop("optimizer_states")
        if _is_own(checkpoint["state_dict"], trainer.lightning_module.state_dict()):
            del checkpoint["state_dict"]  # else a hook has put other weights there, such as averaged ones
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)  # it is in "data"
        return {
            "checkpoint": checkpoint,
            "data": self._data.state_dict(trainer.fit_loop),
            "left_out": self.left_out,
            "metrics": self._metrics.state_dict(),
            "random": lightning_data.capture(trainer.fit_loop),
            "last_saves": {each.state_key: each._last_global_step_saved for each in _with_last_save(trainer)},
            "should_stop": bool(trainer.should_stop),
            "reloaded_at_epoch": float(trainer.fit_loop._last_train_dl_reload_epoch),
        }


def _with_last_save(trainer: Any) -> list[Any]:
    """Return the ModelCheckpoints. Their own state leaves out at which step they saved last.

    Without it, one that has saved at the restored step saves again with the next batch, into a second file.
    """
    return [callback for callback in trainer.checkpoint_callbacks if hasattr(callback, "_last_global_step_saved")]


class _LenientModule:
    """A module that saves a part of its state only, such as the weights of adapters."""

    def __init__(self, module: "torch.nn.Module") -> None:
        self._module = module
        self.named_parameters = module.named_parameters

    def state_dict(self) -> dict[str, Any]:
        return self._module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._module.load_state_dict(state, strict=False)


def end_resume(loop: Any) -> None:
    """Have a loop and those inside it continue as if they had never been interrupted."""
    loop.on_iteration_done()
    for inner in vars(loop).values():
        if hasattr(inner, "on_iteration_done"):
            end_resume(inner)


def _takes_the_iterator(training_step: Any) -> bool:
    return "dataloader_iter" in inspect.signature(training_step).parameters


def _with_hyperparameters(trainer: Any) -> list[Any]:
    """Return module and data module, as far as they keep the arguments that the script gave them."""
    return [one for one in (trainer.lightning_module, trainer.datamodule) if one is not None and one.hparams]


def _is_own(dumped: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether a dumped state has the module's own tensors, and no others."""
    return dumped.keys() == own.keys() and all(_address(dumped[name]) == _address(own[name]) for name in own)


def _address(value: Any) -> int:
    return int(value.data_ptr()) if hasattr(value, "data_ptr") else 0
