"""The GPUs of the node: what the driver and the kernel's log say about those that ranks use."""
