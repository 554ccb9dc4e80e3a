"""Holds pinned slots whose shards are written, until all ranks release theirs at the end of one step."""

import asyncio

from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory

RELEASE_PATIENCE_S = 10.0
"""Time for the daemon's command to release, counted from this node's last shard."""


class HeldSlots:
    """Holds slots until the daemon commands their release, or until it has not done so in time. Runs on the event loop.

    If ranks release a checkpoint's slots at different steps, they have for a moment no snapshot of a common step. That
    is better than slots that stay pinned because the daemon is unreachable, or because the checkpoint lacks a shard.
    """

    def __init__(self, memory: SnapshotMemory) -> None:
        self._memory = memory
        self._give_up: dict[int, asyncio.TimerHandle] = {}

    def hold(self, rank: int, step: int, *, took_s: float) -> None:
        """Hold the slot of ``rank``, whose shard is written or cannot be written.

        ``took_s``: seconds that this node's shards of the step have taken so far.
        """
        self._memory.mark_written(rank, step)
        self.wait(step, took_s=took_s)

    def wait(self, step: int, *, took_s: float = 0.0) -> None:
        """Start to wait for the command to release the slots of ``step``; see :meth:`hold` for ``took_s``."""
        self.agreed(step)
        # The shards of other nodes may take longer: they get as much time again.
        patience_s = max(RELEASE_PATIENCE_S, took_s)
        self._give_up[step] = asyncio.get_running_loop().call_later(patience_s, self.release, step)

    def agreed(self, step: int) -> None:
        """End the wait: all ranks of this node have agreed on the step at which they release."""
        timer = self._give_up.pop(step, None)
        if timer is not None:
            timer.cancel()

    def release(self, step: int) -> None:
        """Release the slots of ``step``, whatever other nodes do."""
        self.agreed(step)
        self._memory.release(step)
