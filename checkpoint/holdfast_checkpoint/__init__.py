"""The checkpoint format: what agents write and both agents and ranks read. See docs/checkpoint-format.md.

The way of a state, from a rank's tensors to the manifest that makes it a checkpoint:

1. ``holdfast_hooks/step_loop.py`` ends a step, and ``sidecar.py`` asks whether a snapshot is due.
   ``snapshots/snapshot_taker.py`` walks the state (``state/encoding.py``) and copies it into the rank's free slot, a
   file in memory: ``snapshots/slot_layout.py`` has the places, ``host_copies.py`` or ``device_copies.py`` the copies.
   The slot's header (``holdfast_proto/snapshot.py``) is written last: a slot is whole or it is nothing.
2. If the step is one for a checkpoint, the slot is pinned: the rank takes its next snapshots in another one. The
   report of the step says so. ``holdfast_agent/rank_messages.py`` passes it to ``checkpoints/shard_saver.py``. From
   here on the rank has no part in it, and may die.
3. ``shard_saver.py`` finds the slot (``snapshots/snapshot_memory.py``) and asks the place for the folder and for the
   checkpoint to which this one is stored as a difference: ``store/run_checkpoints.py`` locates the history,
   ``store/directory.py`` has its folder, ``store/retention.py`` chooses the base.
4. A process of its own writes the shard (``checkpoints/workers.py`` and ``worker.py``), with low priority.
   ``format/slot_shard.py`` is the order of the work: slot, shard, index. ``format/shard_writer.py`` writes tensor after
   tensor, ``codec/byte_planes.py`` compresses each without loss, and every piece is decoded again before it counts.
   ``format/durable.py`` flushes and renames, ``format/shard_index.py`` says what is where, with digests.
5. The index appears after its shard. The agent that finds all indexes of a step writes the manifest
   (``format/manifest.py``): only now is there a checkpoint. Several agents may do so, with one result.
   ``store/retention.py`` then says which older ones nobody needs, and those lose their manifest first.

A crash at any line leaves the last checkpoint as it was, and files that the next start removes.
"""
