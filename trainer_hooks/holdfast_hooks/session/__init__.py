"""The rank's conversation with its agent."""
