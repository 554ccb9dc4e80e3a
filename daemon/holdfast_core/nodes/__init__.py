"""Which nodes should not train: their checks, their faults, their quarantine, and what follows from it."""
