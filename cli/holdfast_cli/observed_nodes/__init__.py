"""Watches a run over several nodes: ``holdfast observe --nodes N`` on each of them."""
