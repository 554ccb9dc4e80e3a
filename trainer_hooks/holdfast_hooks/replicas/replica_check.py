"""Hashes of parameters that several ranks must hold alike. If memory is silently corrupted, one rank's hash differs.

They are taken at the end of a step, when the optimizer is done and all replicas must be equal bit by bit. Training
thread only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from holdfast_hooks.once import OnceLog
from holdfast_hooks.replicas.pieces import Rotation, cut
from holdfast_hooks.replicas.sets import replica_sets
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_proto.v1.session_pb2 import ReplicaHash, StepRecord

BUDGET_RATIO = 0.001
"""Largest share of the training thread's time."""

_HASH_BITS = 0xFFFF_FFFF_FFFF_FFFF
_LOWEST, _HIGHEST = -16, 3
_FIRST = 0


@dataclass(frozen=True)
class ReplicaSums:
    """Sums of the pieces that were checked in one step."""

    names: tuple[str, ...]
    sums: DeferredNumbers

    def put(self, record: StepRecord) -> bool:
        """Put the hashes into the step's record (reporter thread); return False while a GPU still owes them."""
        sums = self.sums.read()
        if sums is None:
            return False
        for name, total in zip(self.names, sums, strict=True):
            record.replicas.append(ReplicaHash(part=name, hash=int(total) & _HASH_BITS))
        return True


class CheckPace:
    """Doubles and halves the checks of a rank, so that they take at most ``budget_ratio`` of its time.

    It works in steps that are a multiple of a power of two, and on more than one portion only if it works in every
    step. So of two ranks with different paces, the slower one's steps are among the faster one's, and the two can be
    compared.
    """

    def __init__(self, budget_ratio: float) -> None:
        self._budget_ratio = budget_ratio
        self._level = _FIRST
        self._newest: tuple[int, float] | None = None

    @property
    def portions(self) -> int:
        """Number of pieces of each set to check in a step that is due; 8 at most."""
        return int(2 ** max(0, self._level))

    @property
    def every(self) -> int:
        """Number of steps from one that is due to the next."""
        return int(2 ** max(0, -self._level))

    def is_due(self, step: int) -> bool:
        """Whether to check in ``step``."""
        return step % self.every == 0

    def worked(self, step: int, *, began_s: float, ended_s: float) -> None:
        """Adapt to the time that the check in ``step`` took. The times are from a clock that only rises."""
        if self._newest is not None and step > self._newest[0]:
            step_s = (began_s - self._newest[1]) / (step - self._newest[0])
            load = (ended_s - began_s) / (self.every * step_s * self._budget_ratio)
            # Double only if twice the work would still be half the budget: otherwise the pace would swing.
            change = -1 if load > 1 else int(load < 1 / 4)
            self._level = min(_HIGHEST, max(_LOWEST, self._level + change))
        self._newest = step, began_s


class ReplicaCheck:
    """Sums some pieces of this rank's replicated parameters in each step, as many as its pace allows.

    Ranks need not agree on a pace. A piece that only some ranks checked in a step is compared between those.
    """

    def __init__(self, state: Mapping[str, Any], once: OnceLog, *, budget_ratio: float = BUDGET_RATIO) -> None:
        self._state = state
        self._once = once
        self._rotations: list[Rotation] | None = None
        self._pace = CheckPace(budget_ratio)

    def check(self, step: int) -> ReplicaSums | None:
        """Return the sums of the pieces of ``step`` at its end, or None if no check is due."""
        if not self._pace.is_due(step) or self._rotations == []:
            return None
        try:
            if self._rotations is None:
                self._rotations = self._find()
            return self._sum(step)
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            self._once.warn("replicas are not compared", repr(error))
            self._rotations = []
            return None

    def _find(self) -> list[Rotation]:
        # Once. Parameters that replace these later are not compared, which is better than a false alarm.
        sets = replica_sets(self._state)
        pieces = [cut(tensors, holders=str(min(ranks))) for ranks, tensors in sets.items()]
        return [Rotation(of_set) for of_set in pieces if of_set]

    def _sum(self, step: int) -> ReplicaSums | None:
        assert self._rotations is not None
        began_s = monotonic()
        portions = self._pace.portions
        pieces = [piece for rotation in self._rotations for piece in rotation.at(step, portions)]
        sums = DeferredNumbers.of([piece.sum() for piece in pieces])
        self._pace.worked(step, began_s=began_s, ended_s=monotonic())
        return ReplicaSums(tuple(piece.name for piece in pieces), sums) if pieces else None
