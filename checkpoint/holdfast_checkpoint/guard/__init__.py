"""Judges checkpoints that a training framework has written: which is the newest good one?

Nothing here writes to the folder, imports torch, or runs code out of a checkpoint. ``candidates`` finds checkpoints,
``inventory`` lists their tensors, ``examination`` judges one, and ``folder_guard`` follows a folder.
"""
