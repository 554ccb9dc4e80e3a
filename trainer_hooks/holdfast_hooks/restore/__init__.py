"""Restores the training objects from a snapshot or a checkpoint."""
