"""Decisions without I/O, clock, threads or randomness."""
