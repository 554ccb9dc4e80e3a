"""Brings a run from a verdict back to training."""
