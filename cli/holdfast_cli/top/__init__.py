"""A run in a terminal, live: ``holdfast top``. Only this package imports textual."""
