"""A training state as a tree of tensors."""
