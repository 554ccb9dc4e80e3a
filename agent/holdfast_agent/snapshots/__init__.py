"""The slots that hold the snapshots of the node's ranks."""
