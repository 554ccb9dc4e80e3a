"""Folds the step records of a node's ranks into one StepSummary per step."""

import math

from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

QUANTITIES = ("loss", "validation_loss", "grad_norm")


class StepSummaries:
    """Summaries of one generation. A step is complete when every rank of the node has reported it."""

    def __init__(self, generation: int, ranks: int) -> None:
        self._generation = generation
        self._ranks = ranks
        self._open: dict[int, tuple[store.StepSummary, set[int]]] = {}

    def add(self, rank: int, record: session.StepRecord) -> list[store.StepSummary]:
        """Add one rank's record; return the summaries that this completes, oldest first.

        A rank reports its steps in order: when all have reported one, what is missing of those before it was
        dropped and will not come.
        """
        summary, reported = self._open.setdefault(
            record.step, (store.StepSummary(step=record.step, generation=self._generation), set())
        )
        reported.add(rank)
        _fold(summary, rank, record)
        if len(reported) < self._ranks:
            return []
        closed = sorted(step for step in self._open if step <= record.step)
        return [self._open.pop(step)[0] for step in closed]


def _fold(summary: store.StepSummary, rank: int, record: session.StepRecord) -> None:
    if record.HasField("loss"):
        summary.loss_sum += record.loss
        summary.loss_count += 1
    for quantity in ("validation_loss", "grad_norm", "learning_rate"):
        if record.HasField(quantity):
            setattr(summary, quantity, getattr(record, quantity))
    for quantity in QUANTITIES:
        if record.HasField(quantity) and not math.isfinite(getattr(record, quantity)):
            summary.nonfinite.add(rank=rank, quantity=quantity)
    for phase, seconds in record.phase_s.items():
        summary.phase_s[phase] = max(summary.phase_s[phase], seconds)
    summary.tokens += record.tokens
    summary.duration_s = max(summary.duration_s, record.duration_s)
    summary.ended_unix_s = max(summary.ended_unix_s, record.ended_unix_s)
