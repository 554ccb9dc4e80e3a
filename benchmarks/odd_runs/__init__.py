"""Healthy training runs with an unusual moment, and their twins in which that moment never ends."""
