"""Pinned slots whose shards are written: all ranks let go of theirs at the end of one step."""

import asyncio

from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory

RELEASE_PATIENCE_S = 10.0
"""How long the daemon may take, after the last shard of this node, to order a release."""


class HeldSlots:
    """Holds slots until the daemon orders their release, or has not for too long. Runs on the event loop.

    Ranks that let go of a checkpoint's slots at different steps have, for a moment, no snapshot of one step in common.
    That is better than slots that are held for a daemon that is away, or for a checkpoint that lacks a shard.
    """

    def __init__(self, memory: SnapshotMemory) -> None:
        self._memory = memory
        self._give_up: dict[int, asyncio.TimerHandle] = {}

    def hold(self, rank: int, step: int, *, took_s: float) -> None:
        """The shard of ``rank`` is written, or cannot be: shards of this step have taken ``took_s`` so far."""
        self._memory.mark_written(rank, step)
        self.wait(step, took_s=took_s)

    def wait(self, step: int, *, took_s: float = 0.0) -> None:
        """Wait for the order to release the slots of ``step``, from now on."""
        self.agreed(step)
        # The shards of other nodes may take longer: as long again.
        patience_s = max(RELEASE_PATIENCE_S, took_s)
        self._give_up[step] = asyncio.get_running_loop().call_later(patience_s, self.release, step)

    def agreed(self, step: int) -> None:
        """All ranks of this node know when to let go: nothing is to be waited for."""
        timer = self._give_up.pop(step, None)
        if timer is not None:
            timer.cancel()

    def release(self, step: int) -> None:
        """Let go of the slots of ``step``, whatever other nodes do."""
        self.agreed(step)
        self._memory.release(step)
