"""The commands that serve, and those for what stands next to them: dashboards and messages."""
