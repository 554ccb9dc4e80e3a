"""Holdfast in one line for Hugging Face's Trainer and the trainers of TRL.

::

    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    Trainer(..., callbacks=[HoldfastCallback()])
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import transformers
from transformers import Trainer, TrainerCallback

import holdfast_hooks
from holdfast_hooks.frameworks.trainer_steps import TRAINER_METHODS, TrainerSteps
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.identity import Identity
from holdfast_hooks.phases import Phase
from holdfast_hooks.state.encoding import Stateful
from holdfast_proto.rank_context import VARIABLE, RankContext


class TrainerEvents:
    """Reports the steps of one ``train()`` under ``holdfast observe``. Training thread only.

    A step ends when the next one begins, because the Trainer logs, evaluates and saves a step after its last event.

    Args:
        state: the Trainer's own state. Its ``global_step`` is the number of steps that were trained.
        control: the object whose flag stops the Trainer.
    """

    def __init__(self, state: Any, control: Any) -> None:
        self._state = state
        self._control = control
        self._open = False
        self._trained = False
        """Whether the open step has changed the parameters. A Trainer may stop before that."""
        self._hooks = holdfast_hooks.attach(check_data_position=False)
        self._hooks.restore()

    def train_begins(self) -> None:
        """Wait for the first step."""

    def epoch_begins(self) -> None:
        """Count the time from now on to the data."""
        self._hooks.enter(Phase.DATA)

    def batches_fetched(self) -> None:
        """End the step before, and begin one."""
        self._end()
        if not self._open:
            self._hooks.begin_step(self._state.global_step)
            self._open = True
        self._hooks.enter(Phase.FORWARD_BACKWARD)

    def batch_ends(self) -> None:
        """Stay in the step: a micro-batch is a part of it."""

    def optimizer_begins(self) -> None:
        """Note that gradients are complete."""
        self._hooks.enter(Phase.OPTIMIZER)

    def step_trained(self) -> None:
        """Count what follows to the data, until an event says otherwise."""
        self._trained = True
        self._hooks.enter(Phase.DATA)

    def evaluates(self) -> None:
        """Note that an evaluation has begun."""
        self._hooks.enter(Phase.EVAL)

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Report the loss of an evaluation."""
        loss = metrics.get("eval_loss")
        if self._open and loss is not None:
            self._hooks.report(validation_loss=float(loss))
        self._hooks.enter(Phase.DATA)

    def logged(self, logs: Mapping[str, Any]) -> None:
        """Report what the Trainer logs: the mean loss since the last line, and the step's own numbers."""
        self._hooks.log(logs)
        if self._open:
            self._hooks.report(**{name: logs.get(name) for name in ("loss", "grad_norm", "learning_rate")})

    def epoch_ends(self) -> None:
        """Stay in the step: the Trainer logs, evaluates and saves it after the epoch."""

    def close(self) -> None:
        """End the last step, and leave training."""
        self._end()
        self._hooks.close()

    def _end(self) -> None:
        if self._open and self._trained:
            self._open = self._trained = False
            if self._hooks.end_step():
                self._control.should_training_stop = True


_log = logging.getLogger("holdfast")
_PATCHED = "_holdfast_original"
_has_trained = False


class HoldfastCallback(TrainerCallback):  # type: ignore[misc]
    """Connects a Trainer to Holdfast. Without Holdfast it does nothing.

    Under ``holdfast run``, a restarted rank continues after the newest step that Holdfast has saved, and the run ends
    with the same bits as one that was never disturbed. Under ``holdfast observe`` it only reports.

    Args:
        state: further objects to save and restore, by name, such as an average of the weights. Model, optimizer,
            scheduler, scaler, the Trainer's state and the position in the data are always saved.

    Only the first ``train()`` of a process is connected. If transformers lacks a method that this depends on,
    ``holdfast observe`` has steps and numbers from the events of callbacks alone, and the log says so.

    Raises ConfigurationError under ``holdfast run`` if transformers lacks such a method, or if a name in ``state`` is
    taken.
    """

    def __init__(self, state: Mapping[str, Stateful] | None = None) -> None:
        self._state = dict(state or {})
        self._steps: TrainerSteps | TrainerEvents | None = None
        self._sees_events_only = VARIABLE in os.environ and not _patch_trainer()

    def run(self, trainer: Any, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's inner loop with its steps connected to Holdfast; return the loop's result."""
        global _has_trained  # noqa: PLW0603 - a process is one rank, and its steps have one count
        if VARIABLE not in os.environ:
            return inner(*args, **kwargs)
        if _has_trained:
            _log.warning("HoldfastCallback: a process can train once under Holdfast; this train() is not connected")
            return inner(*args, **kwargs)
        _has_trained = True
        self._steps = TrainerSteps(trainer, self._state)
        try:
            return self._steps.run(inner, *args, **kwargs)
        finally:
            self._steps = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Put back what the Trainer counts between two lines of its log."""
        global _has_trained  # noqa: PLW0603 - as in run()
        if self._sees_events_only and not _has_trained:
            _has_trained = True
            self._steps = TrainerEvents(state, control)
        if self._steps is not None:
            self._steps.train_begins()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Note the random states from which the epoch's order of samples is drawn."""
        if self._steps is not None:
            self._steps.epoch_begins()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Count the time from now on to forward and backward."""
        if self._steps is not None:
            self._steps.batches_fetched()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Count a micro-batch."""
        if self._steps is not None:
            self._steps.batch_ends()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Count the time from now on to the optimizer."""
        if self._steps is not None:
            self._steps.optimizer_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Count the last micro-batch of a step. The step ends later, when it is logged, evaluated and saved."""
        if self._steps is not None:
            self._steps.step_trained()

    def on_log(  # noqa: D102
        self,
        args: Any,  # noqa: ARG002
        state: Any,  # noqa: ARG002
        control: Any,  # noqa: ARG002
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self._steps is not None:
            self._steps.logged(logs or {})

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Count the time of an evaluation to it, if nothing tells of its beginning."""
        if isinstance(self._steps, TrainerEvents):
            self._steps.evaluates()

    def on_evaluate(  # noqa: D102
        self,
        args: Any,  # noqa: ARG002
        state: Any,  # noqa: ARG002
        control: Any,  # noqa: ARG002
        metrics: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self._steps is not None:
            self._steps.evaluated(metrics or {})

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Note that what follows is logged, evaluated and saved for the epoch."""
        if self._steps is not None:
            self._steps.epoch_ends()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Leave training: what the script does afterwards is its own."""
        if self._steps is not None:
            self._steps.close()


def _patch_trainer() -> bool:
    """Have Trainer's inner loop ask for our callback. No event of a callback comes early enough, or has the trainer.

    Returns whether the loop does. If this transformers lacks a method, a run that is observed has no need of it.
    """
    if hasattr(Trainer, _PATCHED):
        return True
    missing = [name for name in TRAINER_METHODS if not hasattr(Trainer, name)]
    if missing:
        flaw = f"transformers {transformers.__version__} has no Trainer.{missing[0]}, which HoldfastCallback depends on"
        context = RankContext.from_environment(rank=Identity.from_environment().rank)
        if context is not None and context.observed and not context.saves:  # the script would train without Holdfast
            _log.warning("%s: this training is watched by the events of its callbacks alone", flaw)
            return False
        raise ConfigurationError(
            f"{flaw}: install the version of transformers that docs/frameworks.md names, or leave the callback out"
        )
    original = Trainer._inner_training_loop

    @functools.wraps(original)
    def inner_training_loop(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        callback = next((one for one in trainer.callback_handler.callbacks if isinstance(one, HoldfastCallback)), None)
        inner = functools.partial(original, trainer)
        return inner(*args, **kwargs) if callback is None else callback.run(trainer, inner, *args, **kwargs)

    setattr(Trainer, _PATCHED, original)
    Trainer._inner_training_loop = inner_training_loop
    return True
