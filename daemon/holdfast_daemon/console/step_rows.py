"""New steps of a run, as rows for the live end of its curves."""

from typing import Any

from holdfast_daemon.core.model import CoreState


class StepRows:
    """Remembers up to where the pages of a run have its steps."""

    def __init__(self) -> None:
        self._step = -1
        self._generation = 0

    def begin(self, state: CoreState | None) -> None:
        """Begin after the newest step: pages get the earlier ones as curves."""
        self._step = state.telemetry.loss_step if state is not None else -1
        self._generation = state.record.generation if state is not None else 0

    def new(self, state: CoreState | None, now: float) -> dict[str, Any] | None:
        """Return the rows since the last call, and the step after which a restart has undone others; None: nothing."""
        if state is None:
            return None
        undone = None
        telemetry, record = state.telemetry, state.record
        if record.generation != self._generation:
            undone = record.resumed_step if self._generation and record.resumed_step < self._step else None
            self._generation = record.generation
            self._step = -1 if undone is not None else self._step
        rows: list[list[float | None]] = []
        if telemetry.loss_step > self._step and telemetry.loss is not None:
            self._step = telemetry.loss_step
            rows.append(
                [
                    telemetry.loss_step,
                    round(now, 3),
                    telemetry.loss,
                    telemetry.grad_norm,
                    telemetry.tokens_per_s,
                    telemetry.step_s or None,
                    telemetry.learning_rate,
                    telemetry.validation_loss,
                ]
            )
        return {"rows": rows, "undone_after": undone} if rows or undone is not None else None
