"""Detectors of runs that stand still."""
