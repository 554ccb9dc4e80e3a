"""Shows evidence that is taken from a live run: stacks and profiles."""
