"""All checkpoints of a run: the histories of one place, as one line of training."""

import logging
from collections.abc import Iterable
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format.keeping import PROVEN
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.store.histories import FolderPlace, Histories, StorePlace
from holdfast_checkpoint.store.locations import PRIMARY, HistoryCheckpoints, is_url, open_history, open_objects
from holdfast_checkpoint.store.object_store import Bandwidth

_logger = logging.getLogger(__name__)


class RunCheckpoints:
    """The checkpoints of ``run``'s present line of training, over all its histories.

    What concerns one checkpoint is done by its history: see :meth:`at`. ``manifests()`` and ``committed()`` read again
    which history is the present one. All other methods use what these have found.
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
    def present(self) -> HistoryCheckpoints:
        """Checkpoints of the present history."""
        return self.histories.part(self.histories.current)

    @property
    def removal_failures_total(self) -> int:
        """Failed attempts to remove old checkpoints."""
        return self._removal_failures + sum(part.removal_failures_total for part in self._parts())

    def at(self, step: int) -> HistoryCheckpoints:
        """Return the checkpoints of the history to which ``step`` belongs."""
        return self.histories.of_step(step)

    def commit_if_complete(self, step: int, world_size: int, run: str) -> Manifest | None:
        """Commit ``step`` if the shards of all ranks are there; else return None. Raises CheckpointError."""
        part = self.at(step)
        manifest = part.commit_if_complete(step, world_size, run)
        if manifest is not None and part is self.present:
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
                if manifest.run == run and stretch.has(step) and self.at(step) is part
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
            if stretch.has(step) and self.at(step) is part
        )

    def proven(self, steps: Iterable[int]) -> set[int]:
        """Return those of ``steps`` that a finite loss has followed. Raises CheckpointError."""
        return {step for step in steps if self.at(step).mark(step, PROVEN) is not None}

    def close(self) -> None:
        """Retry nothing from now on, because the agent ends."""
        for part in self._parts():
            part.close()

    def _parts(self) -> list[HistoryCheckpoints]:
        return [*self.histories.older(), self.present]

    def _retire_older(self) -> None:
        """Remove older histories once the present one has ``kept`` whole checkpoints: until then they may be needed."""
        older = self.histories.older()
        try:
            if older and self.present.has_enough():
                spare_proven = not self.present.proven(self.present.manifests())
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
