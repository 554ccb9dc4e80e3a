"""The session between a rank and its agent."""
