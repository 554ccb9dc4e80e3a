"""The reference training runtime."""
