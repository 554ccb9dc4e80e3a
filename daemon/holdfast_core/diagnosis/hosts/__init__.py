"""The wait-for graph of all ranks: who waits for whom, and who holds the others up."""
