"""The processes of ranks: the warm parent that forks them, what the agent knows of each, how each ended."""
