"""Output for people on a terminal, and for scripts."""
