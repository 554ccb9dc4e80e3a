"""Progress of the rank in every process group and channel."""
