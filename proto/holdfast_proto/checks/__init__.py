"""Checks of messages: the limits stand next to the fields in the ``.proto`` files, and one checker applies them."""
