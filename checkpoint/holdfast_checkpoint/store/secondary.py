"""Keeps a copy of every committed checkpoint in a second place, and brings it back if the first place has none.

The copy has the same files, so the order of puts is the same: shards, indexes, manifest. A copy that was cut off has no
manifest; the next try compares and sends only what is missing. Nothing about it is kept in this process.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.processes import lower_priority
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.keeping import KEPT, PROVEN
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.store.download import CheckpointDownload
from holdfast_checkpoint.store.histories import Histories
from holdfast_checkpoint.store.locations import HistoryCheckpoints
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints, mark_name, steps_of
from holdfast_checkpoint.store.remote_histories import RemoteHistories
from holdfast_checkpoint.store.retries import Backoff
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints

LOOK_S = 10.0
"""Time between looks for new checkpoints, unless :meth:`Secondary.look` asks for one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lag:
    """The checkpoints that the secondary still lacks."""

    checkpoints: int = 0
    """Number of committed checkpoints that the secondary should have and lacks."""
    nbytes: int = 0
    """Bytes of this node's shards of them."""


class Secondary:
    """Copies the checkpoints of ``run`` from ``primary`` to ``remote`` on a thread of its own.

    Each node copies the shards of its own ranks. If the checkpoint is of a world of another size, its shards are dealt
    out to the ranks of this one. A node that finds the set of all ranks complete puts the manifest. In the secondary
    the newest ``kept`` checkpoints stay, their bases, pinned ones, and the newest proven one.
    """

    def __init__(
        self,
        primary: RunCheckpoints,
        remote: ObjectCheckpoints,
        *,
        run: str,
        kept: int,
        backoff: Backoff | None = None,
    ) -> None:
        self.remote = RemoteHistories(remote)
        self.attempts_total = 0
        """Copies of checkpoints that were begun or resumed."""
        self.failures_total = 0
        """Copies that failed and will be resumed."""
        self.lag = Lag()
        """Checkpoints that the secondary still lacks, as of the newest look."""
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
        """Start the thread. ``own_ranks`` returns the ranks of this node and the size of their world."""
        self._own_ranks = own_ranks
        self._thread.start()

    def look(self) -> None:
        """Have the thread look for new checkpoints now."""
        self._idle.clear()
        self._wake.set()

    def wait(self, patience_s: float) -> bool:
        """Look, and wait until everything is copied or a copy has failed. Return whether ``patience_s`` was enough."""
        self.look()
        return self._idle.wait(patience_s)

    def close(self) -> None:
        """Begin nothing more. An upload under way is cut off: its object appears whole or not at all."""
        self._closed = True
        self.remote.store.retries.closing.set()
        self._wake.set()
        self._idle.set()

    def restorable(self, own: Collection[int]) -> list[int]:
        """Return the steps from which a start is possible, ascending; ``own`` are those of the primary.

        If the primary has any, only older steps are added: newer ones may belong to a line of training that the run has
        left. Raises CheckpointError if the primary has none and the secondary cannot be listed.
        """
        if not own:
            self._steps = sorted(self.remote.manifests())
        return sorted({*own, *(step for step in self._steps if not own or step < max(own))})

    def hand_over(self, histories: Histories[HistoryCheckpoints]) -> None:
        """Begin the secondary's histories in the primary, which has lost its own. Raises CheckpointError."""
        self.remote.histories.refresh()
        for _, record in sorted(self.remote.histories.records.items()):
            histories.begin(record)

    def fetch(self, step: int, ranks: Collection[int] | None) -> Path:
        """Download what ``ranks`` need into the primary's local folder and return it. Raises CheckpointError.

        The files there are not used: they have turned out to be damaged or incomplete.
        """
        log.warning("the checkpoint of step %d is fetched from %s", step, self.remote.store.url)
        into = self._primary.at(step).step_directory(step).parent
        return CheckpointDownload(self.remote.at(step), step, into, again=True).fetch(ranks)

    def _serve(self) -> None:
        lower_priority()
        delays_s = self._backoff.delays_s()
        while not self._closed:
            self._wake.clear()
            wait_s = LOOK_S
            try:
                self._copy_all()
                delays_s = self._backoff.delays_s()
            except (CheckpointError, OSError, RuntimeError, MemoryError) as error:  # RuntimeError: no new thread
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
                unavailable = error  # one that cannot be read must not keep the others from being copied
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
        """Return the steps that the secondary should have, ascending, so that bases are copied first."""
        runs = {self._run, *self._primary.runs}
        own = sorted(step for step, manifest in manifests.items() if manifest.run in runs)
        wanted = {*own[-self._kept :], *(step for step in own if self._primary.at(step).mark(step) is not None)}
        wanted.update(sorted(self._primary.proven(own))[-1:])
        return sorted(wanted | {base for step in wanted for base in manifests[step].bases if base in manifests})

    def _copy(self, manifest: Manifest, wanted: Collection[int]) -> bool:
        """Copy this node's share of a checkpoint, and commit it if no shard is missing. Return whether it did so."""
        self.attempts_total += 1
        try:
            mine, remote = self._share(manifest), self.remote.at(manifest.step)
            source = self._primary.at(manifest.step).fetch(manifest.step, mine) if mine else Path()
            for rank in mine:
                if self._closed:
                    return False
                # The disk may have damaged it since it was written. A damaged copy would push a good one out.
                remote.put_shard(source, rank, check=True)
            indexes = remote.complete_set(manifest.step, manifest.world_size, manifest.run)
            if indexes is None or not remote.commit(manifest, indexes):
                return False
            self.remote.prune(manifest, self._kept, marked=wanted)
        except (CheckpointError, OSError, RuntimeError, MemoryError):
            self.failures_total += 1
            raise
        return True

    def _copy_marks(self, steps: Iterable[int]) -> None:
        """Mark those of ``steps`` in the secondary that are marked in the primary, and release the others.

        A proven checkpoint stays proven.
        """
        for remote in self.remote.parts():
            names = remote.store.listing()
            for step in steps_of(names).intersection(steps):
                if self.remote.at(step) is not remote:
                    continue
                for name in (KEPT, PROVEN):
                    mark, copy = self._primary.at(step).mark(step, name), mark_name(step, name)
                    if mark is not None and copy not in names:
                        remote.store.write(copy, mark)
                    elif mark is None and copy in names and name == KEPT:
                        remote.store.remove([copy])

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
