"""A layout is tried before it is launched: one training step of its ranks, without peers, data or memory."""
