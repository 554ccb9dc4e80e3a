"""What the pages of ranks show."""
