"""The check before the optimizer step, which all ranks make together."""
