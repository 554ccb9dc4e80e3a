"""The measurements of benchmarks/checkpoint.py: ways to checkpoint a training loop, loading, and codecs."""
