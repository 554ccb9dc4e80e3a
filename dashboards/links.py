"""Addresses of the documents that alerts and dashboards point to."""

from holdfast_core.texts.advice import RUNBOOK_URL

__all__ = ["METRICS_URL", "RUNBOOK_URL"]

METRICS_URL = RUNBOOK_URL.replace("runbook", "metrics")
