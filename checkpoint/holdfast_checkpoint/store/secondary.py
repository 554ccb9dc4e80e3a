"""Keeps a second copy of every committed checkpoint elsewhere, and brings it back when the first place has none."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast_checkpoint.errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.priority import lower_priority
from holdfast_checkpoint.store.download import CheckpointDownload
from holdfast_checkpoint.store.histories import Histories
from holdfast_checkpoint.store.locations import Checkpoints, HistoryCheckpoints
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints, kept_name, steps_of
from holdfast_checkpoint.store.remote_histories import RemoteHistories
from holdfast_checkpoint.store.retries import Backoff

LOOK_S = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lag:
    """What is committed in the first place and not in the second."""

    checkpoints: int = 0
    nbytes: int = 0
    """Of the shards that fall to this node."""


class Secondary:
    """Copies the checkpoints of ``run`` from ``primary`` to ``remote`` on a thread of its own.

    The node copies the shards of its own ranks, of a world of another size those that fall to them, and puts a
    manifest if it finds the set of all ranks complete. What has been put is not put again, after an error or in the
    next process. The newest ``kept`` stay there, and what they build on, and what is marked to be kept.
    """

    def __init__(
        self,
        primary: Checkpoints,
        remote: ObjectCheckpoints,
        *,
        run: str,
        kept: int,
        backoff: Backoff | None = None,
    ) -> None:
        self.remote = RemoteHistories(remote)
        self.attempts_total = 0
        """Copies of checkpoints that were begun or gone on with."""
        self.failures_total = 0
        self.lag = Lag()
        self._primary = primary
        self._run = run
        self._kept = kept
        self._own_ranks: Callable[[], tuple[range, int]] = _no_ranks
        self._backoff = backoff or Backoff()
        self._steps: list[int] = []
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="checkpoint-secondary", daemon=True)

    def start(self, own_ranks: Callable[[], tuple[range, int]]) -> None:
        """Begin to copy what is lacking. ``own_ranks`` returns the ranks of this node and the size of their world."""
        self._own_ranks = own_ranks
        self._thread.start()

    def look(self) -> None:
        """Look for new checkpoints now."""
        self._idle.clear()
        self._wake.set()

    def wait(self, patience_s: float) -> bool:
        """Look, and wait until all there is has been copied, or a copy has failed. Returns whether that was in time."""
        self.look()
        return self._idle.wait(patience_s)

    def close(self) -> None:
        """Begin nothing more. A file under way is left: it appears whole or not at all."""
        self._closed = True
        self.remote.store.retries.closing.set()
        self._wake.set()
        self._idle.set()

    def restorable(self, own: Collection[int]) -> list[int]:
        """Return the steps that can be started from, given those of the primary, ascending.

        While the primary has any, only older ones are added: newer ones may be of a future that the run has left.
        Raises CheckpointError if the primary has none and the secondary cannot be listed.
        """
        if not own:
            self._steps = sorted(self.remote.manifests())
        return sorted({*own, *(step for step in self._steps if not own or step < max(own))})

    def hand_over(self, histories: Histories[HistoryCheckpoints]) -> None:
        """Give the primary the records of histories, if it has lost its own. Raises CheckpointError."""
        self.remote.histories.refresh()
        for _, record in sorted(self.remote.histories.records.items()):
            histories.begin(record)

    def fetch(self, step: int, ranks: Collection[int] | None) -> Path:
        """Download into the primary's local folder what ``ranks`` need, whatever is there. Raises CheckpointError."""
        log.warning("checkpoint of step %d is taken from %s", step, self.remote.store.url)
        into = self._primary.step_directory(step).parent
        return CheckpointDownload(self.remote.of_step(step), step, into, again=True).fetch(ranks)

    def _serve(self) -> None:
        lower_priority()
        delays_s = self._backoff.delays_s()
        while not self._closed:
            self._wake.clear()
            wait_s = LOOK_S
            try:
                self._copy_all()
                delays_s = self._backoff.delays_s()
            except (CheckpointError, OSError) as error:
                wait_s = next(delays_s)
                log.warning("checkpoints are not copied to the secondary, next try in %.1f s: %s", wait_s, error)
            if not self._wake.is_set():
                self._idle.set()
            self._wake.wait(wait_s)

    def _copy_all(self) -> None:
        manifests = self._primary.manifests()
        self.remote.follow(self._primary)
        there = self.remote.manifests()
        self._steps = sorted(there)
        wanted = self._wanted(manifests)
        lacking = [step for step in wanted if there.get(step) != manifests[step]]
        still_lacking = list(lacking)
        self._measure(manifests, still_lacking)
        unavailable: CheckpointError | None = None
        for step in lacking:
            if self._closed:
                return
            try:
                is_copied = self._copy(manifests[step], wanted)
            except (CheckpointUnavailable, CheckpointUnreadable) as error:
                unavailable = error  # the others can be copied all the same
                continue
            if is_copied:
                still_lacking.remove(step)
                self._measure(manifests, still_lacking)
        self._copy_marks(manifests)
        if wanted:
            self._steps = sorted(self.remote.manifests())
        if unavailable is not None:
            raise unavailable

    def _wanted(self, manifests: dict[int, Manifest]) -> list[int]:
        """Return the steps of which there is to be a copy, ascending: bases come first."""
        runs = {self._run, *self._primary.runs}
        own = sorted(step for step, manifest in manifests.items() if manifest.run in runs)
        wanted = {*own[-self._kept :], *(step for step in own if self._primary.mark(step) is not None)}
        return sorted(wanted | {base for step in wanted for base in manifests[step].bases if base in manifests})

    def _copy(self, manifest: Manifest, wanted: Collection[int]) -> bool:
        """Copy this node's share of a checkpoint, and commit it if nothing lacks. Returns whether it is committed."""
        self.attempts_total += 1
        try:
            mine, remote = self._share(manifest), self.remote.of_step(manifest.step)
            source = self._primary.fetch(manifest.step, mine) if mine else Path()
            for rank in mine:
                if self._closed:
                    return False
                remote.put_shard(source, rank)
            indexes = remote.complete_set(manifest.step, manifest.world_size, manifest.run)
            if indexes is None or not remote.commit(manifest, indexes):
                return False
            self.remote.prune(manifest, self._kept, marked=wanted)
        except (CheckpointError, OSError):
            self.failures_total += 1
            raise
        return True

    def _copy_marks(self, steps: Iterable[int]) -> None:
        """Mark those of ``steps`` there that are marked here, and release the others."""
        for remote in self.remote.parts():
            names = remote.store.listing()
            for step in steps_of(names).intersection(steps):
                if self.remote.of_step(step) is not remote:
                    continue
                mark = self._primary.mark(step)
                if mark is not None and kept_name(step) not in names:
                    remote.store.write(kept_name(step), mark)
                elif mark is None and kept_name(step) in names:
                    remote.store.remove([kept_name(step)])

    def _share(self, manifest: Manifest) -> list[int]:
        ranks, world_size = self._own_ranks()
        return [rank for rank in range(manifest.world_size) if world_size and rank % world_size in ranks]

    def _measure(self, manifests: dict[int, Manifest], lacking: Collection[int]) -> None:
        nbytes = sum(
            manifests[step].shards[rank].shard_bytes for step in lacking for rank in self._share(manifests[step])
        )
        self.lag = Lag(len(lacking), nbytes)


def _no_ranks() -> tuple[range, int]:
    return range(0), 0
