"""Profiles a few steps of the rank when an operator asks for it."""
