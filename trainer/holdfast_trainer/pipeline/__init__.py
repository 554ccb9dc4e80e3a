"""Pipeline schedules, the tensors between stages, and the loss at the end."""
