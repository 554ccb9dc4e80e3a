"""The position in a torch DataLoader, with the random numbers that its order and its augmentation come from."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.state.sampling import Sampling, freeze_random, thaw_random

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Batch = TypeVar("Batch")


class ResumableLoader(Generic[Batch]):
    """The batches of a loader, as an object for ``attach(state=...)``: a restart continues with the next batch.

    Iterate over it once in each epoch, as over the loader, or call ``next()``. After the last batch of an epoch it
    raises StopIteration, and then begins the next one. An epoch that is left by ``break`` continues in the next loop.

    A restart makes the loader's iterator from the random numbers with which the epoch began. It loads the batches that
    were trained once more and drops them. Then the random numbers of the process are again those of the saved step. So
    shuffled order, augmentation in worker processes or in this one, and dropout are those of an undisturbed run.

    Fetch the batch of a step after the step before has ended: a batch that is fetched counts as trained.

    Args:
        loader: a loader that begins with the same samples on each start. Raises ConfigurationError for one with
            ``persistent_workers=True``, whose random numbers cannot be repeated, or with ``in_order=False``.
        batches_per_step: number of batches that each step takes, such as with gradient accumulation. Raises
            ConfigurationError if it is less than 1.
    """

    def __init__(self, loader: "DataLoader[Batch]", batches_per_step: int = 1) -> None:
        if batches_per_step < 1:
            raise ConfigurationError(f"ResumableLoader(batches_per_step={batches_per_step}): a step takes 1 at least")
        for setting, repeatable in (("persistent_workers", False), ("in_order", True)):
            if getattr(loader, setting, repeatable) is not repeatable:
                raise ConfigurationError(
                    f"ResumableLoader(loader): a loader with {setting}={not repeatable} cannot repeat its batches after"
                    f" a restart: set {setting}={repeatable}"
                )
        self.epoch = 0
        """Number of the epoch of the next batch, for ``range(batches.epoch, epochs)`` and ``set_epoch()``."""
        self.batches_per_step = batches_per_step
        """Number of batches that a step takes."""
        self.fetched = 0
        """Number of batches that this object has returned. Those that it has dropped do not count."""
        self._loader = loader
        self._taken = 0
        """Batches of the epoch that were fetched."""
        self._left_out = 0
        """Number of batches to drop before the next one is returned."""
        self._iterator: Iterator[Batch] | None = None
        self._is_restored = False
        self._sampling = Sampling()
        self._sampling.loader = loader
        self._sampling.note_samplers()

    def __iter__(self) -> Iterator[Batch]:
        """Return this object."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch of the epoch that is not left out."""
        while self._left_out:
            self._fetch()
            self._left_out -= 1
        batch = self._fetch()
        self.fetched += 1
        return batch

    def skip(self, steps: int) -> None:
        """Leave out the data of the next ``steps`` steps: the next call of ``next()`` fetches and drops them.

        An epoch that ends among them raises StopIteration as ever. The rest is dropped at the beginning of the next.
        """
        self._left_out += steps * self.batches_per_step

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the random states with which the epoch began."""
        return {
            "epoch": self.epoch,
            "taken": self._taken,
            "left_out": self._left_out,
            "sampling": self._sampling.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned. The next batch is the one after the saved position."""
        self.epoch, self._taken = state["epoch"], state["taken"]
        self._left_out = state.get("left_out", 0)  # older states have none
        self._sampling.load_state_dict(state["sampling"])
        self._iterator, self._is_restored = None, True

    def _fetch(self) -> Batch:
        if self._iterator is None:
            self._iterator = self._continued() if self._is_restored else self._begun()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.epoch, self._taken, self._iterator = self.epoch + 1, 0, None
            self._sampling.note_samplers()
            raise
        self._taken += 1
        return batch

    def _begun(self) -> Iterator[Batch]:
        self._sampling.note()
        return iter(self._loader)

    def _continued(self) -> Iterator[Batch]:
        self._is_restored = False
        if not self._taken:
            self._sampling.restore_samplers()
            return self._begun()
        of_step = freeze_random()
        self._sampling.begin_again()
        iterator = iter(self._loader)
        for _ in itertools.islice(iterator, self._taken):
            pass
        thaw_random(of_step)
        return iterator
