"""The steps of a Trainer as the events of its callbacks show them, for a transformers whose loop cannot be wrapped."""

from collections.abc import Mapping
from typing import Any

import holdfast_hooks
from holdfast_hooks.phases import Phase


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
