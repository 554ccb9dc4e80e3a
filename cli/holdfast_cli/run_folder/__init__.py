"""The folder of a run: its record, lock, paths and processes."""
