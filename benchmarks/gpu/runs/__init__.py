"""Runs of several ranks on one GPU, which a measurement harms."""
