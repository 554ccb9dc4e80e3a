"""Metrics of a Lightning fit in the middle of an epoch, which Lightning's own checkpoints leave out.

Callbacks act on them at the end of the epoch: a ModelCheckpoint keeps the best model by a mean over all batches.
"""

from typing import Any


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
