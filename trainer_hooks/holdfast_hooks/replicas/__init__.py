"""Compares what several ranks must hold alike."""
