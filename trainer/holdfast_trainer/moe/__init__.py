"""Mixture of experts: routing, balance, the experts."""
