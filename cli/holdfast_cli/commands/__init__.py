"""The work of each command: read its flags, make one call, print the outcome."""
