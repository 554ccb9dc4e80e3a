"""Detectors of ranks that slow a run down or run out of memory."""
