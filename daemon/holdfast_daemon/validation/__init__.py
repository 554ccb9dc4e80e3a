"""What comes from the store is checked here, before the core sees it."""
