"""A run with all its processes on this machine."""
