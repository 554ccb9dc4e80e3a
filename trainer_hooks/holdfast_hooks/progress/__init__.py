"""How far the rank is in every process group."""
