"""Plans of layouts, for people and for scripts."""
