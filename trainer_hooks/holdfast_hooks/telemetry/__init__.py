"""Measurements of a rank's steps and their reports: times, numbers, memory, gradients."""
