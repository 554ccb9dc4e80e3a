"""Copies of the state in slots of shared memory."""
