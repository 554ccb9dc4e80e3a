"""Carries out the leader's commands."""
