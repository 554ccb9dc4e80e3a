"""What a layout needs and costs, from its configuration alone: no torch, no ranks, no GPU."""
