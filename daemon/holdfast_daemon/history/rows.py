"""What a history holds, as values: made from messages by its writer, and returned to its readers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast_daemon.history.history_tables import QUANTITIES
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True, slots=True)
class CountedStep:
    """A step on its way into the history."""

    generation: int
    step: int
    unix_s: float
    nonfinite: int
    """A bit for each of QUANTITIES whose value is NaN or infinite."""
    values: tuple[float | None, ...]
    """Values of QUANTITIES; None: not reported, or not finite."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """The value of a metric at a step. ``name``: see MEMORY and LOGGED of the schema."""

    name: str
    generation: int
    step: int
    unix_s: float
    value: float | None
    """None: it is not finite."""


@dataclass(frozen=True)
class StepRow:
    """A step that was counted. ``values`` lacks what was not reported, and what is not finite."""

    row: int
    """Number that grows from row to row of one start of a run."""
    generation: int
    step: int
    unix_s: float
    values: dict[str, float]
    nonfinite: tuple[str, ...] = ()
    """Quantities that were NaN or infinite."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint that was committed."""

    generation: int
    step: int
    unix_s: float
    raw_bytes: int
    stored_bytes: int
    duration_s: float


@dataclass(frozen=True)
class RunStart:
    """A run that began under the name of the history."""

    instance: str
    created_unix_s: float
    spec: Mapping[str, Any]
    """Fields of the run's RunSpec by name, as ``--json`` shows them, and ``world_size``; empty: not known."""


@dataclass(frozen=True)
class Curve:
    """A quantity over the steps of a run, in buckets of equally many steps. None: no finite value in the bucket."""

    quantity: str
    step: list[int] = field(default_factory=list)
    """Last step of each bucket that has a value."""
    unix_s: list[float] = field(default_factory=list)
    """Unix time of that step."""
    mean: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    nonfinite: list[int] = field(default_factory=list)
    """First step of each bucket at which the value was NaN or infinite."""


def counted_step(summary: store.StepSummary, now: float) -> CountedStep:
    """Return the numbers of a step that a history keeps. ``now``: Unix time, for a summary without one."""
    duration_s = summary.duration_s
    found = (
        summary.loss_sum / summary.loss_count if summary.loss_count else None,
        summary.validation_loss if summary.HasField("validation_loss") else None,
        summary.grad_norm if summary.HasField("grad_norm") else None,
        summary.learning_rate if summary.HasField("learning_rate") else None,
        summary.update_norm if summary.HasField("update_norm") else None,
        summary.loss_scale if summary.HasField("loss_scale") else None,
        summary.tokens / duration_s if summary.tokens and duration_s else None,
        duration_s or None,
        summary.mfu.sum / summary.mfu.count if summary.mfu.count else None,
        summary.phase_s.get(common.PHASE_DATA),
    )
    nonfinite = sum(1 << bit for bit, value in enumerate(found) if value is not None and not math.isfinite(value))
    values = tuple(value if value is not None and math.isfinite(value) else None for value in found)
    return CountedStep(summary.generation, summary.step, summary.ended_unix_s or now, nonfinite, values)


def checked(row: tuple[Any, ...], *, nullable: int = 0) -> tuple[Any, ...]:
    """Return a row of numbers, of which the last ``nullable`` may be NULL. Raises ValueError for another one.

    SQLite keeps a value of any type in any column, so a damaged file may have texts there.
    """
    required = len(row) - nullable
    if all(isinstance(one, int | float) or (one is None and at >= required) for at, one in enumerate(row)):
        return row
    raise ValueError("a row in it holds a value that is no number")


def metric_stride(step: int) -> int:
    """Return the number of steps that a row of a metric at ``step`` stands for: a power of ten, 1 below step 5,000.

    So a run of ten million steps keeps 20,000 rows of each name, and the newest rows are at most 1/500 of it apart.
    """
    return 10 ** max(0, len(str(step // 5)) - 3) if step >= 5_000 else 1


def nonfinite_names(mask: int) -> tuple[str, ...]:
    """Return the quantities whose bits are set."""
    return tuple(name for bit, name in enumerate(QUANTITIES) if mask >> bit & 1)


def checkpoint_row(event: store.Event) -> CheckpointRow:
    """Return the row of a committed checkpoint from the event that reports it."""
    committed = event.checkpoint_committed
    return CheckpointRow(
        event.generation,
        committed.step,
        event.unix_s,
        committed.raw_bytes,
        committed.stored_bytes,
        committed.duration_s,
    )
