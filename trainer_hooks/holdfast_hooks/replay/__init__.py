"""Replays steps: computes a step again from the same state, and compares the bits of what each rank has computed."""
