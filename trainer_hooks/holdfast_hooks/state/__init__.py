"""A training state as a tree of tensors: encoding, names and shards."""
