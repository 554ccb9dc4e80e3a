"""Finds out what the training thread of a rank waits for, from what its kernel shows. The rank is never paused."""
