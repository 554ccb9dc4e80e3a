"""Learns which ranks hold the same plain parameters, and finds a rank that no longer does.

Ranks report a sample of all their plain parameters. Ranks with the same sample are a class. When the same classes were
seen ``LEARNING_LOOKS`` times, each time with other values, their ranks are taken for replicas: training has moved their
parameters together.

From then on, a part that one class held alike, with at least two different values, may show a corruption. It does if
more than half of the class still agree, or if the class has two ranks. Anything else, such as a class that falls apart
as a whole or two classes at once, is the training loop itself, which averages parameters from now on, say. Then
nothing is compared any more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from holdfast_core.detectors.numbers.replica_sides import Difference, by_part, difference
from holdfast_proto.v1 import store_pb2 as store

LEARNING_LOOKS = 16
_MOST_CLASSES = 8
"""Times that the classes may be others than at the look before. Ranks that are equal now and then are no replicas."""

_MOST_ALIKE = 2**16
"""Parts that are remembered, over all classes. Ranks have a few hundred each."""

_SAMPLE = ""


@dataclass(frozen=True)
class Alike:
    """The newest look at a part that a class held alike."""

    step: int
    hash: int
    has_changed: bool = False
    """Whether they held it alike with two different values."""


@dataclass(frozen=True)
class LearnedReplicas:
    """What the looks of one generation have shown."""

    classes: tuple[tuple[int, ...], ...] = ()
    """Ranks by the equality of their newest sample."""
    samples: tuple[int, ...] = ()
    """The newest sample of each class while they are being learned."""
    looks: int = 0
    """Looks that showed these classes with values that have changed since the look before."""
    regrouped: int = 0
    """Times that the classes were others than at the look before."""
    alike: Mapping[str, Alike] = field(default_factory=dict)
    """Newest look at each part that a class held alike, by class and part."""
    has_parted: bool = False
    """Whether replicas have become different as no corruption makes them."""

    @property
    def is_learned(self) -> bool:
        """Whether the classes are sure enough to compare their ranks."""
        return self.looks >= LEARNING_LOOKS and not self.has_parted

    @property
    def are_none(self) -> bool:
        """Whether no rank has a replica, as far as the looks show."""
        has_none = self.looks >= LEARNING_LOOKS and all(len(ranks) == 1 for ranks in self.classes)
        return self.has_parted or has_none or self.regrouped >= _MOST_CLASSES

    def has_replica(self, rank: int) -> bool:
        """Whether another rank is known to hold the same as this one."""
        return self.is_learned and any(rank in ranks and len(ranks) > 1 for ranks in self.classes)

    def see(self, step: int, plain: Iterable[store.ReplicaHashes]) -> tuple[Self, list[Difference]]:
        """Return what is known after a step, and the parts in which a replica differs from the others."""
        parts = by_part(plain)
        if self.are_none or _SAMPLE not in parts:
            return self, []
        known = self if self.is_learned else self._learn(parts[_SAMPLE])
        alike, differences = known._compare(step, parts)
        if len(known.alike) + len(alike) > _MOST_ALIKE:
            alike = {key: look for key, look in alike.items() if key in known.alike}
        if not known.is_learned or not differences:
            return replace(known, alike={**known.alike, **alike} if alike else known.alike), []
        classes = {found.odd_class for found in differences}
        if len(classes) == 1 and all(found.is_telling for found in differences):
            return known, [found.difference for found in differences]
        return replace(known, classes=(), samples=(), alike={}, has_parted=True), []

    def _learn(self, sides: Sequence[store.ReplicaHashes]) -> Self:
        newest = sorted((tuple(sorted(side.ranks)), side.hash) for side in sides)
        classes, samples = tuple(ranks for ranks, _ in newest), tuple(hash_ for _, hash_ in newest)
        if sum(map(len, classes)) < sum(map(len, self.classes)):
            return self  # some ranks look less often
        if classes != self.classes:
            return type(self)(classes=classes, samples=samples, regrouped=self.regrouped + bool(self.classes))
        has_moved = all(now != before for now, before in zip(samples, self.samples, strict=True))
        return replace(self, samples=samples, looks=self.looks + has_moved)

    def _compare(
        self, step: int, parts: Mapping[str, Sequence[store.ReplicaHashes]]
    ) -> tuple[Mapping[str, Alike], list["_Odd"]]:
        """Return what whole classes hold alike, and what they held alike before and do not now."""
        alike: dict[str, Alike] = {}
        differences: list[_Odd] = []
        for ranks in (ranks for ranks in self.classes if len(ranks) > 1):
            members: frozenset[int] = frozenset()
            for part, all_sides in parts.items():
                key = f"{ranks[0]} {part}"
                before = self.alike.get(key)
                if (hash_ := self._common_hash(ranks, all_sides)) is not None:
                    alike[key] = Alike(step, hash_, before is not None and (before.has_changed or before.hash != hash_))
                    continue
                members = members or frozenset(ranks)
                sides = [sorted(mine) for side in all_sides if (mine := members.intersection(side.ranks))]
                is_whole = sum(map(len, sides)) == len(members)  # else some look less often
                if is_whole and before is not None and before.has_changed:
                    differences.append(_Odd(ranks, difference(part, sides, before.step)))
        return alike, differences

    def _common_hash(self, ranks: tuple[int, ...], sides: Sequence[store.ReplicaHashes]) -> int | None:
        """Return the hash that all these ranks report, or None if they differ or some report none."""
        side = next((side for side in sides if ranks[0] in side.ranks), None)
        if side is None or len(side.ranks) < len(ranks):
            return None
        # The first test decides at no cost where it matters: all ranks of a very large world are replicas.
        is_whole_world = len(self.classes) == len(sides) == 1 and len(side.ranks) == len(ranks)
        return side.hash if is_whole_world or set(ranks).issubset(side.ranks) else None


@dataclass(frozen=True)
class _Odd:
    """A part in which ranks of a class differ."""

    odd_class: tuple[int, ...]
    difference: Difference

    @property
    def is_telling(self) -> bool:
        """Whether it looks like one corruption, and not like a loop that lets its ranks drift apart."""
        return self.difference.has_majority or len(self.odd_class) == 2
