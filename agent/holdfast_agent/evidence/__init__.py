"""Gathers the evidence of an incident before the ranks are gone."""
