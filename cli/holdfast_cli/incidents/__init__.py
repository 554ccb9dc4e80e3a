"""Shows incidents."""
