"""The agent's metrics."""
