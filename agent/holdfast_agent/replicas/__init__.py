"""Replica snapshots: shards that this node holds in memory for its own ranks and for those of a partner."""
