"""Which checkpoints the run can start from, as this node sees the primary and the secondary place."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format.history import HistoryRecord
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints
from holdfast_checkpoint.store.secondary import Secondary
from holdfast_proto.left_out import Windows, from_messages
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

REFRESH_S = 5.0

_TURN_S = 0.5
"""Pause before the node sees whether it must look."""

LOOKERS = 8
"""Nodes that look while all train, the first ones in rank order. A thousand nodes that list a shared folder every few
seconds are a load for it; the loss of one rack must not leave nobody who knows the checkpoints."""


class CheckpointInventory:
    """The committed and the damaged checkpoints of both places, as of the newest look at them.

    ``takes_over``: ranks of an earlier agent train already. A store that is unreachable is then no reason to end.
    Without it the constructor raises CheckpointError.
    """

    def __init__(
        self,
        primary: RunCheckpoints,
        secondary: Secondary | None,
        known: KnownCheckpoints | None,
        run: str,
        *,
        takes_over: bool = False,
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.run = run
        self.known = known or KnownCheckpoints(str(primary.path))
        self.in_primary: list[int] = []
        """Steps of the checkpoints that the primary place holds, ascending."""
        self.committed: list[int] = []
        """Steps that the run can start from, ascending; those of the secondary and vanished ones included."""
        self.damaged: list[int] = []
        """Steps whose manifest exists and cannot be read."""
        self.vanished: set[int] = set()
        """Steps that this node has seen before, that are missing now, and that pruning cannot have removed."""
        self.newest_generation = 0
        """Generation that wrote the newest checkpoint; 0: there is no checkpoint."""
        self.is_old = False
        """Whether the node has left it to others to look since its newest look."""
        try:
            self.look()
        except CheckpointError as error:
            if not takes_over:
                raise
            log.warning("the checkpoints cannot be listed, the agent tries again in a few seconds: %s", error)

    @property
    def history(self) -> int:
        """Number of the history to which the next checkpoint belongs."""
        return self.primary.history

    @property
    def left_out(self) -> Windows:
        """Data that this history leaves out."""
        return self.primary.histories.left_out

    def look(self) -> None:
        """List both places. Raises CheckpointError if one cannot be listed; the inventory then stays as it was."""
        in_primary, damaged = self.primary.committed(), self.primary.damaged()
        committed = self.secondary.restorable(in_primary) if self.secondary is not None else in_primary
        history = self.primary.history
        self.known.check_history(history)
        vanished = self.known.vanished(history, {*committed, *damaged}, self.primary.kept)
        if committed:
            self.newest_generation = self._manifest(committed[-1], in_primary).generation
        # The daemon may still choose a vanished checkpoint: the start then waits until its files are back. If we left
        # it out, the run would silently start from an older one.
        self.in_primary, self.committed, self.damaged = in_primary, sorted({*committed, *vanished}), damaged
        self.vanished = vanished
        self.known.note(history, {*committed, *damaged, *vanished})
        self.is_old = False

    def _manifest(self, step: int, in_primary: Sequence[int]) -> Manifest:
        if self.secondary is not None and step not in in_primary:
            return self.secondary.remote.at(step).load_manifest(step)
        return self.primary.at(step).load_manifest(step)

    async def refresh(self, report_loss: Callable[[int], None], must_look: Callable[[], bool] = lambda: True) -> None:
        """Look every few seconds, forever: other nodes commit checkpoints too, and people remove folders.

        ``report_loss`` is called with the newest step of those that have vanished since the look before. While
        ``must_look`` returns False, it is left to other nodes; when that ends, the node looks at once.
        """
        known: set[int] = set()
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(min(REFRESH_S, _TURN_S))
            now_s = time.monotonic()
            if not must_look():
                self.is_old, looked_s = True, -math.inf
                continue
            if now_s - looked_s < REFRESH_S:
                continue
            looked_s = now_s
            try:
                await asyncio.to_thread(self.look)
            except CheckpointError as error:
                log.warning("the checkpoints cannot be listed: %s", error)
            if self.vanished - known:
                report_loss(max(self.vanished - known))
            known = set(self.vanished)

    def begin_history(self, history: store.History) -> None:
        """Continue in ``history``, and begin it if no other node has. Raises CheckpointError."""
        if history.number > self.history:
            self.look()  # another node may have begun it
        if history.number > self.history:
            record = HistoryRecord(
                number=history.number,
                run=self.run,
                parent=history.parent,
                parent_step=history.parent_step,
                since_unix_s=history.since_unix_s,
                left_out=from_messages(history.left_out),
            )
            self.primary.histories.begin(record)
            self.known.enter(history.number, history.parent_step)
            self.look()

    def local_directory(self, step: int) -> Path | None:
        """Return the directory of a committed checkpoint; None if it is not committed or not on this node."""
        directory = self.primary.at(step).step_directory(step)
        return directory if step in self.committed and (directory / MANIFEST).exists() else None

    def close(self) -> None:
        """Close both places."""
        self.primary.close()
        if self.secondary is not None:
            self.secondary.close()
