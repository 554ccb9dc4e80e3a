"""Brings a checkpoint to the ranks of this node: into slots, or as a directory if their world has another size."""

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import Manifest, load_committed_index, load_manifest
from holdfast_checkpoint.format.shard_index import slot_bytes_needed
from holdfast_checkpoint.store.remote_histories import RemoteHistories
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints
from holdfast_proto.snapshot import SnapshotError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartingPoint:
    """The state that the ranks of a generation start from; if both fields are empty, they start from the seed."""

    slots: Mapping[int, Path] = field(default_factory=dict)
    """Rank -> the slot with its state."""
    checkpoint: Path | None = None
    """Directory of the checkpoint. Ranks load from it if the slots do not fit their layout."""


@dataclass(frozen=True)
class _Source:
    """One way to get a checkpoint."""

    place: RunCheckpoints | RemoteHistories
    fetch: Callable[[int, Collection[int] | None], Path]
    """Brings a step's shards of the given ranks (None: of all) to this node; returns the directory."""

    @property
    def is_copy(self) -> bool:
        """Whether this is the secondary place, which need not have every checkpoint."""
        return isinstance(self.place, RemoteHistories)


class CheckpointRestorer:
    """Verifies and unpacks committed checkpoints before the ranks of a generation start."""

    def __init__(self, inventory: CheckpointInventory, memory: SnapshotMemory) -> None:
        self._inventory = inventory
        self._memory = memory
        self._newest_start = -1
        """Step of the checkpoint that was restored last; -1: none was."""

    async def starting_point(self, step: int, ranks: Sequence[int], world_size: int, generation: int) -> StartingPoint:
        """Verify a committed checkpoint and, if a world of this size wrote it, unpack it into slots.

        Damaged or missing files are fetched again from where they came, and then from the secondary place.
        Raises CheckpointUnreadable, which names the file and the tensor, or the other run that wrote it. Raises
        CheckpointUnavailable if the reason may pass: a file is missing, or a store cannot be reached.
        """
        inventory = self._inventory
        # Ranks whose layout differs from that of the slots need the shards of all ranks. We learn that only when
        # their first start fails, so a second start from the same step fetches everything.
        share = None if self._newest_start == step else ranks
        self._newest_start = step
        if inventory.secondary is not None and step not in inventory.in_primary:
            await self._look_again()
        failures: list[tuple[_Source, CheckpointError]] = []
        for source in self._sources(step):
            try:
                manifest = await asyncio.to_thread(source.place.at(step).load_manifest, step)
                self._check_run(manifest)
                needed = share if manifest.world_size == world_size else None
                directory = await asyncio.to_thread(source.fetch, step, needed)
                return await self._read(directory, ranks, world_size, generation)
            except CheckpointError as error:
                log.warning("checkpoint of step %d: %s", step, error)
                failures.append((source, error))
        way_out = inventory.known.way_out if step in inventory.vanished else ""
        raise reason_of([(source.is_copy, error) for source, error in failures], way_out)

    async def _look_again(self) -> None:
        """List the checkpoints that other nodes have committed just now. Raises CheckpointUnavailable."""
        try:
            await asyncio.to_thread(self._inventory.look)
        except CheckpointError as error:
            raise CheckpointUnavailable(str(error)) from error

    def _sources(self, step: int) -> list[_Source]:
        """Return the ways to get a checkpoint, in the order in which they are tried."""
        primary, secondary = self._inventory.primary, self._inventory.secondary
        sources: list[_Source] = []
        if secondary is None or step in self._inventory.in_primary:
            place = primary.at(step)
            sources.append(_Source(primary, place.fetch))
            if place.store_retries is not None:
                sources.append(_Source(primary, functools.partial(place.fetch, again=True)))
        if secondary is not None:
            sources.append(_Source(secondary.remote, secondary.fetch))
        return sources

    def _check_run(self, manifest: Manifest) -> None:
        primary, run = self._inventory.primary, self._inventory.run
        if manifest.run not in {run, *primary.runs}:
            raise CheckpointUnreadable(
                f"{primary.at(manifest.step).step_directory(manifest.step)}: written by run {manifest.run}, "
                f"this is run {run}: use --run {manifest.run} to continue it, or another --checkpoints directory"
            )

    async def _read(self, directory: Path, ranks: Sequence[int], world_size: int, generation: int) -> StartingPoint:
        manifest = await asyncio.to_thread(load_manifest, directory)
        # No rank runs now, so the workers need not yield to anybody.
        workers = CheckpointWorkers(max(1, min(len(ranks), len(os.sched_getaffinity(0)))), background=False)
        try:
            if manifest.world_size != world_size:
                jobs = [
                    workers.run("verify", directory=directory, ranks=[rank], world_size=world_size) for rank in ranks
                ]
                await asyncio.gather(*jobs)
                self._memory.keep_only(-1, ranks)  # snapshots of the other world fit no rank of this one
                return StartingPoint(checkpoint=directory)
            slots = await asyncio.to_thread(self._slots_for, directory, ranks)
            jobs = [
                workers.run("restore", directory=directory, rank=rank, slot=str(slot), generation=generation)
                for rank, slot in slots.items()
            ]
            await asyncio.gather(*jobs)
            return StartingPoint(slots, directory)
        finally:
            await asyncio.to_thread(workers.close)

    def _slots_for(self, directory: Path, ranks: Sequence[int]) -> dict[int, Path]:
        return {rank: slot_for(directory, rank, self._memory, ranks_on_node=len(ranks)) for rank in ranks}


def reason_of(failures: Sequence[tuple[bool, CheckpointError]], way_out: str) -> CheckpointError:
    """Return the error to raise after every source of a checkpoint has failed.

    The first failure to get the files wins over damage, because files that are missing now may still be good. One
    exception: a secondary that lacks the checkpoint proves nothing, since it need not hold every checkpoint.

    Args:
        failures: for each source whether it is the secondary, and its error; in the order of the tries, not empty.
        way_out: end of the message about missing files that tells the user what to do; may be empty.
    """
    damage: CheckpointError | None = None
    for is_copy, error in failures:
        if isinstance(error, CheckpointUnreadable):
            damage = damage or error
        elif damage is None or not (is_copy and isinstance(error, CheckpointUnavailable)):
            return CheckpointUnavailable(f"{error}{way_out}")
    assert damage is not None, "every source has failed"
    return damage


def slot_for(directory: Path, rank: int, memory: SnapshotMemory, *, ranks_on_node: int) -> Path:
    """Return a slot for the state of ``rank`` in a checkpoint's directory. No rank may be alive.

    Raises CheckpointUnreadable, or SnapshotError if there is no room for a slot.
    """
    index = load_committed_index(directory, load_manifest(directory), rank)
    grant = memory.grant(rank, slot_bytes_needed(index), ranks_on_node)
    if not grant.paths:
        raise SnapshotError(f"rank {rank} has no slot to restore into: {grant.reason}")
    return grant.paths[0]
