"""Torch's recorders behind one interface. Each source keeps its own group ids and counters: they are never merged."""
