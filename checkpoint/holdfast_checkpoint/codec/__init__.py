"""How tensors are stored: byte planes, differences to an earlier state, entropy coding."""
