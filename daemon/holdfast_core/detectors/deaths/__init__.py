"""Detectors of ranks that end."""
