"""Replica snapshots: copies of ranks' snapshots in the memory of a partner node, so that a lost node costs seconds."""
