"""Spreads the model over ranks: tensor, context, expert and data parallelism, ZeRO."""
