"""Copies of a rank's state in slots, which survive the rank."""
