"""The checkpoint format: what agents write and both agents and ranks read. See docs/checkpoint-format.md."""
