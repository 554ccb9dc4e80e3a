"""The holdfast command, which puts the parts together."""
