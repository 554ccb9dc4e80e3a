"""The check of a node before ranks start there: does it compute, store and send, and how fast."""
