"""Addresses of the documents that alerts and dashboards point to."""

REPOSITORY_URL = "https://github.com/holdfast-dev/holdfast"
RUNBOOK_URL = f"{REPOSITORY_URL}/blob/main/docs/runbook.md"
"""Address of the runbook; every alert's ``runbook_url`` adds an anchor to it."""
METRICS_URL = f"{REPOSITORY_URL}/blob/main/docs/metrics.md"
