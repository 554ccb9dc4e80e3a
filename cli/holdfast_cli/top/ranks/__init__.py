"""The ranks: how odd each is, as a list, as a map, and one alone."""
