"""The months of ``benchmarks/goodput.py``: what a fault costs a large job, and how it lives through many."""
