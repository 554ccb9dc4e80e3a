"""The runs of benchmarks/detection.py: faults and healthy controls, the right verdicts and the score."""
