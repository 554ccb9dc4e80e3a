"""Loss curves of real runs, and what the number detectors report on them."""
