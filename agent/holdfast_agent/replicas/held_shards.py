"""What a node knows of the shards in its replica store, without a look at a file."""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from holdfast_checkpoint.format.shard_index import Base, ShardIndex
from holdfast_proto.v1 import store_pb2

Key = tuple[int, int]
"""Step and rank."""

_MOST_GROUPS = 64
"""Most groups that a node reports: see NodeReplicas.held."""


@dataclass(frozen=True)
class HeldShard:
    """What is known of one shard. Its index is too large to be kept."""

    generation: int
    world_size: int
    digest: str
    """Digest of the index."""
    base: Base | None
    nbytes: int
    """Bytes of the shard file."""

    @classmethod
    def of(cls, index: ShardIndex) -> "HeldShard":
        """Return what is kept of an index. This takes a while: it is encoded once more."""
        return cls(index.generation, index.world_size, index.digest, index.base, index.shard_bytes)


class HeldShards:
    """The complete shards of a node. A caller that changes them holds a lock; readers need none.

    A shard that is a difference is here only while the full one that it builds on is.
    """

    def __init__(self) -> None:
        self._shards: dict[Key, HeldShard] = {}
        """Is replaced, never changed, so that readers see one state or the other."""
        self._built: Counter[Key] = Counter()
        """Number of shards that were ever built on a full one."""

    def get(self, step: int, rank: int) -> HeldShard | None:
        """Return what is known of a shard."""
        return self._shards.get((step, rank))

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.nbytes for shard in self._shards.values())

    def has_base(self, base: Base | None, rank: int) -> bool:
        """Return whether the shard that one of ``rank`` builds on is here, if there is one."""
        if base is None:
            return True
        shard = self.get(base.step, rank)
        return shard is not None and shard.digest == base.index_digest and shard.base is None

    def by_step(self) -> list[store_pb2.HeldReplicas]:
        """Return the shards by step, generation and size of their world, ascending."""
        groups = defaultdict(list)
        for (step, rank), shard in self._shards.items():
            groups[step, shard.generation, shard.world_size].append(rank)
        return [
            store_pb2.HeldReplicas(step=step, generation=generation, world_size=world_size, ranks=sorted(ranks))
            for (step, generation, world_size), ranks in sorted(groups.items())[-_MOST_GROUPS:]
        ]

    def base_for(self, rank: int, world_size: int, most_differences: int) -> int | None:
        """Return the step of the newest full shard of a rank; None without one, and if enough others build on it."""
        steps = [
            step
            for (step, of_rank), shard in self._shards.items()
            if of_rank == rank and shard.world_size == world_size and shard.base is None
        ]
        if not steps or self._built[max(steps), rank] >= most_differences:
            return None
        return max(steps)

    def unneeded(self, kept_step: int | None, wanted_step: int) -> set[Key]:
        """Return all but those of ``kept_step``, those from ``wanted_step`` on, and what these build on."""
        stay = {key for key in self._shards if key[0] == kept_step or key[0] >= wanted_step}
        stay |= {(base.step, rank) for step, rank in stay if (base := self._shards[step, rank].base) is not None}
        return self._shards.keys() - stay

    def steps(self) -> set[int]:
        """Return the steps of all shards."""
        return {step for step, _ in self._shards}

    def later_than(self, step: int) -> set[Key]:
        """Return the shards of later steps."""
        return {key for key in self._shards if key[0] > step}

    def built_on(self, step: int, rank: int) -> set[Key]:
        """Return the shards that build on this one."""
        return {
            key
            for key, shard in self._shards.items()
            if key[1] == rank and shard.base is not None and shard.base.step == step
        }

    def add(self, step: int, rank: int, shard: HeldShard) -> None:
        """Count a complete shard."""
        self._shards = {**self._shards, (step, rank): shard}
        if shard.base is not None:
            self._built[shard.base.step, rank] += 1

    def remove(self, keys: Collection[Key]) -> None:
        """Count these no longer."""
        self._shards = {key: shard for key, shard in self._shards.items() if key not in keys}
        for key in keys:
            self._built.pop(key, None)
