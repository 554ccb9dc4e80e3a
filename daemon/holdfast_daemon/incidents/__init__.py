"""Incidents on the daemon's disk."""
