"""Follows the loops of a Lightning fit: where a step begins and ends, and where a restored fit continues.

A snapshot needs a moment at which everything of a step is done: the optimizer, the schedulers, a validation that is
due, the files of ModelCheckpoint. No hook of a callback is called then. So methods of this trainer's loop objects are
wrapped, and unwrapped when the fit ends. After the last batch of an epoch, the step ends with the epoch.

Lightning's own way to resume leaves out a validation that is due, or runs the end of a batch twice. So a restored fit
goes that way only until its loops have begun. Then their saved progress is loaded once more, as it was.
"""

import warnings
from collections.abc import Callable
from typing import Any

from holdfast_hooks.frameworks import lightning_data
from holdfast_hooks.frameworks.lightning_data import EpochData
from holdfast_hooks.frameworks.lightning_state import TrainerProgress, end_resume
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.phases import Phase

_Call = Callable[..., Any]

_NAMES = {
    "trainer": ("fit_loop", "_checkpoint_connector", "_logger_connector", "save_checkpoint"),
    "trainer._checkpoint_connector": (
        "dump_checkpoint",
        "restore_model",
        "restore_datamodule",
        "restore_callbacks",
        "restore_precision_plugin_state",
        "restore_loops",
        "restore_lr_schedulers",
        "_loaded_checkpoint",
    ),
    "trainer._logger_connector": (
        "_callback_metrics",
        "_logged_metrics",
        "_progress_bar_metrics",
        "_current_fx",
        "_first_loop_iter",
    ),
    "trainer.fit_loop": (
        "run",
        "on_advance_start",
        "on_advance_end",
        "on_run_end",
        "on_iteration_done",
        "epoch_loop",
        "epoch_progress",
        "load_state_dict",
        "_can_stop_early",
        "_combined_loader",
        "_data_fetcher",
        "_last_train_dl_reload_epoch",
        "_load_combined_loader_states",
    ),
    "trainer.fit_loop.epoch_loop": (
        "on_iteration_done",
        "reset",
        "on_run_start",
        "advance",
        "on_advance_end",
        "_is_training_done",
        "_num_ready_batches_reached",
        "_batches_that_stepped",
        "_results",
        "batch_progress",
        "min_steps",
        "update_lr_schedulers",
    ),
}
"""Names of Lightning, most of them private, that this package needs: the names of each object."""


def missing_names(trainer: Any) -> list[str]:
    """Return the names that this version of Lightning does not have."""
    found = []
    for path, names in _NAMES.items():
        owner = trainer
        for part in path.split(".")[1:]:
            owner = getattr(owner, part, None)
        # Some are properties that only work while a fit runs: ask the class for those.
        found += [f"{path}.{name}" for name in names if not (hasattr(type(owner), name) or hasattr(owner, name))]
    return found


class FitSteps:
    """Begins and ends the steps of one fit. Only the training thread uses it.

    Args:
        progress: state to restore and to save; None if the fit is watched only.
        before_end: is called just before a step ends, to report its numbers.
    """

    def __init__(
        self,
        trainer: Any,
        hooks: Hooks,
        data: EpochData,
        progress: TrainerProgress | None,
        before_end: Callable[[], None],
    ) -> None:
        self._trainer = trainer
        self._loop = trainer.fit_loop
        self._hooks = hooks
        self._data = data
        self._progress = progress
        self._before_end = before_end
        self._wrapped: list[tuple[Any, str]] = []
        self._is_running = False
        self._is_nested = False
        """Whether a callback runs the loops inside of the fit, such as to find a learning rate."""
        self._is_open = False
        self._first_step = 0
        self._began_at = 0
        """Lightning's count of optimizer steps when the open step began."""

    def follow(self) -> None:
        """Wrap the loops' methods until the fit ends."""
        fit, epoch = self._loop, self._loop.epoch_loop
        self._wrap(fit, "run", self._run)
        self._wrap(fit, "_load_combined_loader_states", self._before_first_iterator)
        self._wrap(fit, "on_advance_start", self._on_epoch_start)
        self._wrap(fit, "on_advance_end", self._on_epoch_end)
        self._wrap(fit, "on_run_end", self._on_last_step_done)
        self._wrap(epoch, "reset", self._on_reset)
        self._wrap(epoch, "on_run_start", self._on_batches_start)
        self._wrap(epoch, "advance", self._on_batch)
        self._wrap(epoch, "on_advance_end", self._on_batch_end)
        self._wrap(self._trainer, "save_checkpoint", self._save_checkpoint)

    def leave(self) -> None:
        """Unwrap what is still wrapped by this."""
        for owner, name in self._wrapped:
            vars(owner).pop(name, None)
        self._wrapped = []

    def _wrap(self, owner: Any, name: str, around: _Call) -> None:
        original = getattr(owner, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            if self._is_nested:
                return original(*arguments, **options)
            return around(original, *arguments, **options)

        vars(owner)[name] = wrapper
        self._wrapped.append((owner, name))

    def _run(self, original: _Call) -> None:
        if self._is_running:
            self._is_nested = True
            try:
                original()
            finally:
                self._is_nested = False
            return
        self._is_running = True
        begun = lightning_data.capture(self._loop)
        self._hooks.restore()
        restored = None if self._progress is None else self._progress.restored
        if restored is not None:
            if not self._is_mid_epoch():
                end_resume(self._loop)  # the next epoch begins as any other
            # Loaders that the script makes now are made as they were in the first start.
            lightning_data.restore(self._loop, begun)
        else:
            self._first_step = self._trainer.global_step
            if self._progress is not None:
                self._progress.check()
        try:
            original()
        finally:
            self.leave()
        self._hooks.close()

    def _is_mid_epoch(self) -> bool:
        progress = self._loop.epoch_progress.current
        return bool(progress.started > progress.completed)

    def _before_first_iterator(self, original: _Call) -> None:
        original()
        self._data.begin_iterator(self._loop)

    def _on_epoch_start(self, original: _Call) -> None:
        if self._progress is not None and self._progress.restored is not None and not self._is_mid_epoch():
            lightning_data.resume_between_epochs(self._loop, self._progress.restored["data"])
            self._continue_exactly()
        original()

    def _on_reset(self, original: _Call) -> None:
        with warnings.catch_warnings():
            if self._progress is not None and self._progress.restored is not None:
                # Lightning warns that a resumed epoch trains its first batches twice. Here it does not.
                warnings.filterwarnings("ignore", message=".*dataloader is not resumable")
            original()

    def _on_batches_start(self, original: _Call, fetcher: Any) -> None:
        if self._progress is not None and (restored := self._progress.restored) is not None:
            original(fetcher)
            self._data.resume(self._loop, fetcher, restored["data"])
            self._continue_exactly()
            return
        before, iterator = lightning_data.capture(self._loop), fetcher.combined_loader._iterator
        original(fetcher)
        if fetcher.combined_loader._iterator is not iterator:
            self._data.at_iter = before
        self._data.begin_epoch(self._loop, fetcher)

    def _continue_exactly(self) -> None:
        """Take up the progress of the loops and the random states of the snapshot."""
        assert self._progress is not None and self._progress.restored is not None
        self._progress.load_loops()
        self._loop._last_train_dl_reload_epoch = self._progress.restored["reloaded_at_epoch"]
        lightning_data.restore(self._loop, self._progress.restored["random"])
        self._progress.restored = None
        self._progress.has_stepped = True

    def _on_batch(self, original: _Call, fetcher: Any) -> None:
        if self._progress is not None and self._progress.left_out and self._leave_out(fetcher, self._progress):
            return
        if not self._is_open:
            self._is_open = True
            self._began_at = self._trainer.global_step
            # A fit from ckpt_path begins at a later step. With several optimizers, Lightning counts faster than this.
            self._hooks.begin_step(max(self._hooks.next_step, self._first_step))
        self._hooks.enter(Phase.DATA)
        original(fetcher)

    def _leave_out(self, fetcher: Any, progress: TrainerProgress) -> bool:
        """Fetch and drop the batches that are left out, and count them. Return whether the epoch ends with them.

        Then Lightning validates and ends the epoch as after a batch that was trained.
        """
        epoch = self._loop.epoch_loop
        while progress.left_out and not epoch._num_ready_batches_reached():
            for _ in range(self._trainer.accumulate_grad_batches):
                next(fetcher)
                epoch.batch_progress.increment_by(1, is_last_batch=fetcher.done)
                if epoch._num_ready_batches_reached():
                    break  # the last step of an epoch may have fewer batches
            progress.left_out -= 1
        if not epoch._num_ready_batches_reached():
            return False
        epoch.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        epoch._batches_that_stepped -= 1  # the end of a batch adds one, and no optimizer has stepped
        return True

    def _on_batch_end(self, original: _Call, fetcher: Any) -> None:
        original(fetcher)
        # After the epoch's last batch, the step ends with the epoch.
        if self._trainer.global_step > self._began_at and not self._ends_epoch():
            self._end_step()

    def _on_epoch_end(self, original: _Call) -> None:
        original()
        if self._is_open and self._trainer.global_step > self._began_at:
            self._end_step()

    def _ends_epoch(self) -> bool:
        epoch = self._loop.epoch_loop
        return bool(epoch._is_training_done or (self._trainer.should_stop and self._loop._can_stop_early))

    def _ends_fit(self) -> bool:
        """Whether the loops end here, as ``fit_loop.done`` decides it. That also writes a line."""
        loop, limits = self._loop, (self._trainer.max_steps, self._trainer.max_epochs)
        counts = (self._trainer.global_step, loop.epoch_progress.current.processed)
        reached = any(limit not in (None, -1) and count >= limit for count, limit in zip(counts, limits, strict=True))
        return reached or bool(self._trainer.should_stop and loop._can_stop_early)

    def _end_step(self) -> None:
        self._is_open = False
        self._before_end()
        if self._progress is not None:
            self._progress.has_stepped = True
        if not self._is_mid_epoch() and self._ends_fit():
            self._hooks.restore(until=self._hooks.next_step)
        if self._hooks.end_step():
            self._loop.min_epochs = self._loop.epoch_loop.min_steps = None  # the checkpoint of this step is the last
            self._trainer.should_stop = True

    def _on_last_step_done(self, original: _Call) -> None:
        self._hooks.close()  # before other callbacks end: some give the module other weights
        original()

    def _save_checkpoint(self, original: _Call, *arguments: Any, **options: Any) -> None:
        self._hooks.enter(Phase.CHECKPOINT)
        original(*arguments, **options)
        self._hooks.enter(Phase.FORWARD_BACKWARD)
