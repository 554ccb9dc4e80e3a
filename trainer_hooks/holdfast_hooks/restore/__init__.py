"""Puts a snapshot or a checkpoint back into the training objects."""
