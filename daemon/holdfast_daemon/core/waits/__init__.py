"""Who waits for whom, and who holds everybody up: the wait-for graph of all ranks."""
