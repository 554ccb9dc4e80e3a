"""A bad loss: what counts, what is done about it, and the way back to a good state."""
