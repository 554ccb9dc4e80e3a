"""Addresses of the documents that alerts and dashboards point to."""

REPOSITORY_URL = "https://github.com/holdfast-dev/holdfast"
RUNBOOK_URL = f"{REPOSITORY_URL}/blob/main/docs/runbook.md"
"""Every alert's ``runbook_url`` is this and an anchor."""
METRICS_URL = f"{REPOSITORY_URL}/blob/main/docs/metrics.md"
