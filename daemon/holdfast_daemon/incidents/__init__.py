"""Incidents on the daemon's disk, and the recordings from which `holdfast replay` reaches their verdicts again."""
