"""Where the wall time of a run went: every second is productive, or lost to one named cause."""
