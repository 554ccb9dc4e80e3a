"""Runs everything on this machine."""
