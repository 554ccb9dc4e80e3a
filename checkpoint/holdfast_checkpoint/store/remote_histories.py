"""The histories of a run in the secondary, an object store, as one line of training."""

from collections.abc import Collection

from holdfast_checkpoint.format.keeping import PROVEN
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.store.histories import Histories, StorePlace
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints
from holdfast_checkpoint.store.object_store import ObjectStore
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints


class RemoteHistories:
    """The checkpoints of all histories of a place, as one line of training; ``first`` has those of the first history.

    Every method raises CheckpointError as those of :class:`ObjectCheckpoints` do.
    """

    def __init__(self, first: ObjectCheckpoints) -> None:
        self.histories = Histories(StorePlace(first.store), first.of_history)
        self._first = first

    @property
    def store(self) -> ObjectStore:
        """Store of the whole place."""
        return self._first.store

    def at(self, step: int) -> ObjectCheckpoints:
        """Return the checkpoints of the history that a step belongs to."""
        return self.histories.of_step(step)

    def parts(self) -> list[ObjectCheckpoints]:
        """Return the checkpoints of each history of the line, newest first."""
        return [part for part, _ in self.histories.line()]

    def manifests(self) -> dict[int, Manifest]:
        """Return the manifests of the line's checkpoints, by step."""
        self.histories.refresh()
        return {
            step: manifest
            for part in self.parts()
            for step, manifest in part.manifests().items()
            if self.at(step) is part
        }

    def follow(self, primary: RunCheckpoints) -> None:
        """Begin the histories that the primary has and the secondary lacks."""
        self.histories.refresh()
        for number, record in sorted(primary.histories.records.items()):
            if number not in self.histories.records:
                self.histories.begin(record)

    def prune(self, newest: Manifest, kept: int, marked: Collection[int]) -> None:
        """Remove what the commit of ``newest`` makes superfluous; older histories once the present one has ``kept``."""
        part = self.at(newest.step)
        part.prune(newest, kept, marked=marked)
        current = self.histories.part(self.histories.current)
        if part is current and current.whole() >= kept:
            spare_proven = not current.marked(PROVEN, current.manifests())
            for older in self.histories.older():
                older.retire([step for step in marked if self.at(step) is older], spare_proven=spare_proven)
