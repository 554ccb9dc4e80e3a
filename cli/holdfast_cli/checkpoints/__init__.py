"""Looks at, verifies, exports and imports checkpoints."""
