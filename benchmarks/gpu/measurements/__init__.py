"""Measurements on a GPU. Each module has ``measure(device) -> Outcome``; on "cpu" it rehearses what it can."""
