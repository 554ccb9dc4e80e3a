"""Measures how long a rank's own work takes on its GPU, without the time in which the GPU waits for other ranks."""
