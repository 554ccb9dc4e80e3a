"""All checkpoints of a run: the histories of one place, as one line of training."""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format.bad_loss import BadLossRecord
from holdfast_checkpoint.format.history import HistoryRecord
from holdfast_checkpoint.format.keeping import KEPT, PROVEN
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.store.histories import FolderPlace, Histories, StorePlace
from holdfast_checkpoint.store.locations import PRIMARY, HistoryCheckpoints, is_url, open_history, open_objects
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_checkpoint.store.retries import Retries

_logger = logging.getLogger(__name__)


class RunCheckpoints:
    """The checkpoints of ``run``'s present line of training, over all its histories. See :class:`Checkpoints`.

    ``manifests()`` and ``committed()`` read again which history is the present one. All other methods use what these
    have found.
    """

    def __init__(self, histories: Histories[HistoryCheckpoints], run: str, path: Path, kept: int) -> None:
        self.histories = histories
        self.kept = kept
        """Number of whole checkpoints of a history that stay."""
        self.path = path
        """Local folder in which shards are written and read."""
        self._run = run
        self._removal_failures = 0

    @property
    def history(self) -> int:
        """Number of the present history."""
        return self.histories.current

    @property
    def runs(self) -> frozenset[str]:
        """Names of the runs that have begun a history here."""
        return frozenset(record.run for record in self.histories.records.values())

    @property
    def store_retries(self) -> Retries | None:
        """Counters of an object store's calls; None: the checkpoints are in a folder."""
        return self._current.store_retries

    @property
    def removal_failures_total(self) -> int:
        """Failed attempts to remove old checkpoints."""
        return self._removal_failures + sum(part.removal_failures_total for part in self._parts())

    def step_directory(self, step: int) -> Path:
        """Return the folder in which this node writes the shards of ``step``."""
        return self.histories.of_step(step).step_directory(step)

    def check_writable(self) -> None:
        """Write something and remove it, to test the setting. Raises CheckpointError."""
        self._current.check_writable()

    def begin(self, record: HistoryRecord) -> None:
        """Begin a history: the next checkpoints belong to it. Raises CheckpointError."""
        self.histories.begin(record)

    def note_bad_loss(self, record: BadLossRecord) -> None:
        """Record that checkpoints of the present history may hold a bad state. Raises CheckpointError."""
        self.histories.note_bad_loss(record)

    def publish(self, step: int, rank: int) -> None:
        """Bring a written shard to the place that all nodes see. Raises CheckpointError."""
        self.histories.of_step(step).publish(step, rank)

    def commit_if_complete(self, step: int, world_size: int, run: str) -> Manifest | None:
        """Commit ``step`` if the shards of all ranks are there; else return None. Raises CheckpointError."""
        part = self.histories.of_step(step)
        manifest = part.commit_if_complete(step, world_size, run)
        if manifest is not None and part is self._current:
            self._retire_older()
        return manifest

    def manifests(self) -> dict[int, Manifest]:
        """Return the manifests of the line's checkpoints, by step. Raises CheckpointError."""
        self.histories.refresh()
        found: dict[int, Manifest] = {}
        for part, stretch in self.histories.line():
            run = self.histories.run_of(stretch.history) or self._run
            found |= {
                step: manifest
                for step, manifest in part.manifests().items()
                if manifest.run == run and stretch.has(step) and self.histories.of_step(step) is part
            }
        return found

    def committed(self) -> list[int]:
        """Return the steps of the line's checkpoints, ascending. Raises CheckpointError."""
        return sorted(self.manifests())

    def damaged(self) -> list[int]:
        """Return the steps of the line whose manifest is damaged, ascending. Raises CheckpointError."""
        return sorted(
            step
            for part, stretch in self.histories.line()
            for step in part.damaged()
            if stretch.has(step) and self.histories.of_step(step) is part
        )

    def missing(self, step: int) -> list[str]:
        """Return the names of a committed checkpoint's files that are missing or have another size."""
        return self.histories.of_step(step).missing(step)

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of ``step``. Raises CheckpointError."""
        return self.histories.of_step(step).load_manifest(step)

    def fetch(self, step: int, ranks: Collection[int] | None = None, *, again: bool = False) -> Path:
        """Return a directory from which the states of ``ranks`` (None: of all) can be read. Raises CheckpointError."""
        return self.histories.of_step(step).fetch(step, ranks, again=again)

    def base_for(self, step: int, *, run: str, world_size: int, generation: int, full_every: int) -> int | None:
        """Return the full checkpoint of the same history to which to store ``step`` as a difference, or None."""
        part = self.histories.of_step(step)
        return part.base_for(step, run=run, world_size=world_size, generation=generation, full_every=full_every)

    def keep(self, step: int, reason: str) -> None:
        """Pin a committed checkpoint. Raises CheckpointError."""
        self.histories.of_step(step).keep(step, reason)

    def prove(self, step: int, finite_step: int) -> None:
        """Mark a committed checkpoint as proven by the finite loss of a later step. Raises CheckpointError."""
        self.histories.of_step(step).prove(step, finite_step)

    def proven(self, steps: Iterable[int]) -> set[int]:
        """Return those of ``steps`` that a finite loss has followed. Raises CheckpointError."""
        return {step for step in steps if self.mark(step, PROVEN) is not None}

    def mark(self, step: int, name: str = KEPT) -> bytes | None:
        """Return the contents of a file that marks ``step``, or None. Raises CheckpointError."""
        return self.histories.of_step(step).mark(step, name)

    def close(self) -> None:
        """Retry nothing from now on, because the agent ends."""
        for part in self._parts():
            part.close()

    @property
    def _current(self) -> HistoryCheckpoints:
        return self.histories.part(self.histories.current)

    def _parts(self) -> list[HistoryCheckpoints]:
        return [*self.histories.older(), self._current]

    def _retire_older(self) -> None:
        """Remove older histories once the present one has ``kept`` whole checkpoints: until then they may be needed."""
        older = self.histories.older()
        try:
            if older and self._current.has_enough():
                spare_proven = not self._current.proven(self._current.manifests())
                for part in older:
                    part.retire(spare_proven=spare_proven)
        except CheckpointError as error:
            self._removal_failures += 1
            _logger.warning("cannot remove the checkpoints of older histories: %s", error)


def open_checkpoints(
    location: str, staging: Path, kept: int, bandwidth: Bandwidth | None = None, *, run: str
) -> RunCheckpoints:
    """Return the checkpoints that ``--checkpoints`` names; for a URL, ``staging`` is this node's own folder.

    It does not read yet which histories there are. Raises CheckpointError if a package is missing, ValueError like
    :func:`check_location`.
    """
    remote = open_objects(PRIMARY, location, bandwidth=bandwidth) if is_url(location) else None
    place = FolderPlace(Path(location)) if remote is None else StorePlace(remote.store)

    def open_part(number: int) -> HistoryCheckpoints:
        return open_history(location, number, staging, kept, remote)

    return RunCheckpoints(Histories(place, open_part), run, Path(location) if remote is None else staging, kept)
