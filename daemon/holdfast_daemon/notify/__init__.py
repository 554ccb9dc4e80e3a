"""Notifies people of a run: what is reported, how it is grouped, and how it is delivered."""
