"""The checkpoints of a run: when one is taken, what fails or cannot be read, which is proven, where a start begins."""
