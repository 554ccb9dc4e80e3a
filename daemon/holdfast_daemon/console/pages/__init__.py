"""What the pages of runs, incidents, checkpoints and the daemon itself show."""
