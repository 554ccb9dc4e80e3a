"""The dry run of a layout before its launch: one training step of its ranks, without peers, data or memory."""
