"""The ranks that benchmarks/detection.py harms: real collectives over the groups of a layout, on tiny tensors."""
