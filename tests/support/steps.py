"""Helpers that show detectors the numbers of steps."""

from collections.abc import Iterable

from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store


def view(summary: store.StepSummary, **changes: object) -> StepView:
    """Return a step's numbers as a detector sees them."""
    deadlines = Deadlines.for_preset(store.PRESET_FAST)
    fields = {"now": 1000.0 + summary.step, "deadlines": deadlines, "coordinates": {}} | changes
    return StepView(summary=summary, **fields)  # type: ignore[arg-type]


def show(
    detector: Detector, summaries: Iterable[store.StepSummary], **changes: object
) -> tuple[Detector, list[store.Verdict]]:
    """Return the detector after steps, and its verdicts. ``changes``: as with :func:`view`."""
    verdicts = []
    for summary in summaries:
        result = detector.see_step(view(summary, **changes))
        detector = result.next
        verdicts += [finding.verdict for finding in result.findings]
    return detector, verdicts


def steps_of(verdicts: list[store.Verdict]) -> list[int]:
    """Return the steps of verdicts."""
    return [verdict.step for verdict in verdicts]
