"""What ranks report, checked and folded, and the link that publishes it."""
