"""The history of a run's steps and checkpoints, in a file of SQLite for each name of a run."""
