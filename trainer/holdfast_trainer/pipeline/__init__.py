"""Pipeline schedules and what flows through them."""
