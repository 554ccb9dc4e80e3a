"""The incidents of a run: their list, the story of one, and its files."""
