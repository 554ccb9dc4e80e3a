"""The folder of a run, and what other commands find in it."""
