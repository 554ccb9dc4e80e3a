"""Fingerprints, step by step, of what several ranks must hold alike: memory that was corrupted silently shows.

Taken at the end of a step, when the optimizer is done and all replicas must be bit-equal. Training thread only.
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
"""Of the training thread's time."""

_HASH_BITS = 0xFFFF_FFFF_FFFF_FFFF
_LOWEST, _HIGHEST = -16, 3
_FIRST = 0


@dataclass(frozen=True)
class ReplicaSums:
    """What was looked at in one step."""

    names: tuple[str, ...]
    sums: DeferredNumbers

    def put(self, record: StepRecord) -> bool:
        """Put the hashes into the record of the step (reporter thread); return False while they are on their way."""
        sums = self.sums.read()
        if sums is None:
            return False
        for name, total in zip(self.names, sums, strict=True):
            record.replicas.append(ReplicaHash(part=name, hash=int(total) & _HASH_BITS))
        return True


class CheckPace:
    """Doubles and halves the work per step, so that it takes ``budget_ratio`` of the time at most.

    Of two paces the slower one's steps are among the faster one's: it works on steps that are a multiple of a power
    of two, and on more than one portion a step only if it works on every step.
    """

    def __init__(self, budget_ratio: float) -> None:
        self._budget_ratio = budget_ratio
        self._level = _FIRST
        self._newest: tuple[int, float] | None = None

    @property
    def portions(self) -> int:
        """How much to do on a step that is due; 8 at most."""
        return int(2 ** max(0, self._level))

    @property
    def every(self) -> int:
        """How many steps lie between two that are due."""
        return int(2 ** max(0, -self._level))

    def is_due(self, step: int) -> bool:
        """Whether to work at ``step``."""
        return step % self.every == 0

    def worked(self, step: int, *, began_s: float, ended_s: float) -> None:
        """Adapt to what the work at ``step`` took; times are of a clock that only rises."""
        if self._newest is not None and step > self._newest[0]:
            step_s = (began_s - self._newest[1]) / (step - self._newest[0])
            load = (ended_s - began_s) / (self.every * step_s * self._budget_ratio)
            # Up only where twice the work still leaves as much room again: else it would go to and fro.
            change = -1 if load > 1 else int(load < 1 / 4)
            self._level = min(_HIGHEST, max(_LOWEST, self._level + change))
        self._newest = step, began_s


class ReplicaCheck:
    """Looks at some pieces of this rank's replicated parameters, at no more than its pace allows.

    Ranks need not agree on a pace: what fewer of them looked at in a step is compared between those.
    """

    def __init__(self, state: Mapping[str, Any], once: OnceLog, *, budget_ratio: float = BUDGET_RATIO) -> None:
        self._state = state
        self._once = once
        self._rotations: list[Rotation] | None = None
        self._pace = CheckPace(budget_ratio)

    def check(self, step: int) -> ReplicaSums | None:
        """Return the sums of the pieces whose turn it is at the end of ``step``, if it is due."""
        if not self._pace.is_due(step) or self._rotations == []:
            return None
        try:
            if self._rotations is None:
                self._rotations = self._find()
            return self._sum(step)
        except Exception as error:  # noqa: BLE001 - the state is the user's own; training goes on whatever it raises
            self._once.warn("replicas are not compared", repr(error))
            self._rotations = []
            return None

    def _find(self) -> list[Rotation]:
        # Once: who replaces parameters later has them compared no more, but gets no false alarm.
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
