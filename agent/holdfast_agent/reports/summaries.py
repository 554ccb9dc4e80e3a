"""Folds the step records of a node's ranks into one StepSummary per step, and the numbers that scripts log."""

import math
from collections.abc import Iterable, MutableSequence

from holdfast_proto.limits import MOST_LOGGED_NAMES
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import GRADIENT, MEAN_FIELDS, WATCHED_FIELDS

COMMON = ("validation_loss", "grad_norm", "learning_rate", "update_norm", "loss_scale")
"""Quantities that are the same on every rank that reports them."""

OPEN_STEPS = 1000
"""Most steps that wait for records of ranks. Older ones are dropped from the run's numbers."""


class StepSummaries:
    """Summaries of one generation. A step is complete when every rank of the node has reported it."""

    def __init__(self, generation: int, ranks: int) -> None:
        self._generation = generation
        self._ranks = ranks
        self._open: dict[int, tuple[store.StepSummary, set[int]]] = {}

    def add(self, rank: int, record: session.StepRecord, *, dp: int = 0) -> list[store.StepSummary]:
        """Add a rank's record; return the summaries that this completes, oldest first.

        A rank reports its steps in order. When all ranks have reported a step, records that are missing for earlier
        steps were dropped and will not arrive, so those steps are complete too.

        Args:
            dp: the rank's data-parallel index; 0 for ranks that report none, which then share all samples.
        """
        summary, reported = self._open.setdefault(
            record.step, (store.StepSummary(step=record.step, generation=self._generation), set())
        )
        reported.add(rank)
        _fold(summary, record)
        _add_nonfinite(summary, rank, record)
        _add_hashes(summary.replicas, rank, record.replicas)
        _add_hashes(summary.plain, rank, record.plain)
        _add_coverage(summary, rank, record)
        _add_replay(summary, rank, record)
        _add_samples(summary, rank, dp, record.samples)
        if len(reported) < self._ranks:
            while len(self._open) > OPEN_STEPS:  # a rank of this node reports none, or other steps than its peers
                del self._open[min(self._open)]
            return []
        closed = sorted(step for step in self._open if step <= record.step)
        return [self._open.pop(step)[0] for step in closed]


def _fold(summary: store.StepSummary, record: session.StepRecord) -> None:
    if record.HasField("loss"):
        summary.loss_sum += record.loss
        summary.loss_count += 1
    for quantity in COMMON:
        if record.HasField(quantity):
            setattr(summary, quantity, getattr(record, quantity))
    for quantity in MEAN_FIELDS:
        if record.HasField(quantity):
            mean = getattr(summary, quantity)
            mean.sum += getattr(record, quantity)
            mean.count += 1
    for phase, seconds in record.phase_s.items():
        summary.phase_s[phase] = max(summary.phase_s[phase], seconds)
    summary.tokens += record.tokens
    summary.dropped_tokens += record.dropped_tokens
    summary.overflow |= record.overflow
    summary.duration_s = max(summary.duration_s, record.duration_s)
    summary.ended_unix_s = max(summary.ended_unix_s, record.ended_unix_s)


def _add_nonfinite(summary: store.StepSummary, rank: int, record: session.StepRecord) -> None:
    for quantity in WATCHED_FIELDS:
        if record.HasField(quantity) and not math.isfinite(getattr(record, quantity)):
            summary.nonfinite.add(rank=rank, quantity=quantity)
    if record.HasField("nonfinite_origin"):
        origin = record.nonfinite_origin
        summary.nonfinite.add(rank=rank, quantity=GRADIENT, module=origin.module, unix_s=origin.unix_s)
    if record.HasField("bad_gradient"):
        _add_bad_gradient(summary, rank, record.bad_gradient)


def _add_bad_gradient(summary: store.StepSummary, rank: int, bad: session.BadGradient) -> None:
    if bad.own:
        summary.nonfinite.add(rank=rank, quantity=GRADIENT, parameter=bad.parameter, unix_s=bad.unix_s)
        return
    # It may come from any rank of a sum: it says more about the rank's numbers, and nothing about the rank.
    for reported in summary.nonfinite:
        if reported.rank == rank and reported.quantity != GRADIENT:
            reported.parameter = bad.parameter


def _add_hashes(
    sides: MutableSequence[store.ReplicaHashes], rank: int, reported: Iterable[session.ReplicaHash]
) -> None:
    known = {(side.part, side.hash): side for side in sides}
    for replica in reported:
        side = known.get((replica.part, replica.hash))
        if side is None:
            sides.append(store.ReplicaHashes(part=replica.part, hash=replica.hash, ranks=[rank]))
        else:
            side.ranks.append(rank)


def _add_coverage(summary: store.StepSummary, rank: int, record: session.StepRecord) -> None:
    if record.HasField("coverage"):
        coverage = record.coverage
        summary.coverage.add(
            rank=rank,
            replica_bytes=coverage.replica_bytes,
            plain_bytes=coverage.plain_bytes,
            parameter_bytes=coverage.parameter_bytes,
        )


def _add_replay(summary: store.StepSummary, rank: int, record: session.StepRecord) -> None:
    if record.HasField("replay"):
        check, replay = record.replay, summary.replay
        replay.duration_s = max(replay.duration_s, check.duration_s)
        replay.refusal = replay.refusal or check.refusal
        if check.part:
            replay.differences.add(rank=rank, part=check.part, vote=check.vote)


def _add_samples(summary: store.StepSummary, rank: int, dp: int, fingerprint: bytes) -> None:
    if fingerprint and (dp, fingerprint) not in {(use.dp, use.fingerprint) for use in summary.samples}:
        summary.samples.add(dp=dp, rank=rank, fingerprint=fingerprint)


class LoggedNames:
    """Names that the ranks of one generation have logged. All ranks of a job log the same names as a rule."""

    def __init__(self) -> None:
        self._lowest: dict[str, int] = {}
        """Lowest rank that has logged a name."""

    def of(self, rank: int, numbers: Iterable[common.LoggedNumber]) -> list[common.LoggedNumber]:
        """Return those of a rank's numbers that count, with its rank: no lower rank of this node logs their names."""
        counted = []
        for number in numbers:
            known = self._lowest.get(number.name)
            if known is None and len(self._lowest) >= MOST_LOGGED_NAMES:
                continue
            if known is None or rank <= known:
                self._lowest[number.name] = number.rank = rank
                counted.append(number)
        return counted
