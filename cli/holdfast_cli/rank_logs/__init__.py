"""The output of ranks: where it is, and how it is printed."""
