"""Turns snapshots into checkpoints and checkpoints into snapshots, in worker processes."""
