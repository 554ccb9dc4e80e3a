"""Detectors of losses, gradients and samples that go wrong."""
