"""Data types of the computation, fp8, and loss scaling."""
