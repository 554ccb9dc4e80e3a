"""What crosses a process boundary in Holdfast: messages, Redis keys, shared-memory layouts."""
