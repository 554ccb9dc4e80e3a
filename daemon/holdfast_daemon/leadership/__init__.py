"""The shell of a run: its lease, its loop, its store."""
