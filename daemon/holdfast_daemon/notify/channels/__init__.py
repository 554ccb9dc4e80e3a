"""Ways on which a message reaches people. Each sends one message, once, and says how that ended."""
