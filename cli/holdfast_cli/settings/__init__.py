"""The settings of a run: one schema for flags, for the file and for the code that uses them."""
