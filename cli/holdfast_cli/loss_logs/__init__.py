"""Judges the log of a training run with the detectors of the daemon."""
