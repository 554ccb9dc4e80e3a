"""The library inside a training process: telemetry, progress, snapshots, commands."""
