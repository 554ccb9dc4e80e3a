"""The curves of a report: which there are, and their data."""

from dataclasses import dataclass
from typing import Any

from holdfast_cli.reports.markup import Markup, element, joined
from holdfast_cli.reports.run_facts import RunFacts
from holdfast_daemon.history.rows import Curve

POINTS = 800
"""Most points of a curve: about one for each pixel."""


@dataclass(frozen=True)
class _Chart:
    title: str
    quantities: tuple[tuple[str, str], ...]
    """Quantity of the history and its name in the legend."""


_CHARTS = (
    _Chart("Loss", (("loss", "loss"), ("validation_loss", "validation loss"))),
    _Chart("Gradient norm", (("grad_norm", "gradient norm"),)),
    _Chart("Throughput (tokens/s)", (("tokens_per_s", "tokens/s"),)),
    _Chart("Step time (s)", (("step_s", "step time"),)),
)


def chart_data(facts: RunFacts) -> dict[str, Any]:
    """Return the data of all charts that have a point, and the steps of the incidents, for the page's script."""
    charts = []
    for chart in _CHARTS:
        curves = [(name, facts.curve(quantity, points=POINTS)) for quantity, name in chart.quantities]
        curves = [(name, curve) for name, curve in curves if curve.step]
        if curves:
            charts.append({"title": chart.title, "curves": [_plain(name, curve) for name, curve in curves]})
    marks = [{"step": max(incident.verdict.step, 0), "label": _number(incident.id)} for incident in facts.incidents]
    return {"charts": charts, "marks": marks}


def chart_figures(data: dict[str, Any]) -> Markup:
    """Return a place for each chart, with its numbers in words for those who do not see it."""
    return joined(_figure(number, chart) for number, chart in enumerate(data["charts"]))


def _plain(name: str, curve: Curve) -> dict[str, Any]:
    return {
        "name": name,
        "step": curve.step,
        "mean": curve.mean,
        "low": curve.low,
        "high": curve.high,
        "nonfinite": curve.nonfinite,
    }


def _figure(number: int, chart: dict[str, Any]) -> Markup:
    words = " ".join(_as_text(curve) for curve in chart["curves"])
    return element(
        "figure",
        element("h3", chart["title"]),
        element("div", class_="chart", data_chart=str(number)),
        element("figcaption", words),
    )


def _as_text(curve: dict[str, Any]) -> str:
    known = [value for value in curve["mean"] if value is not None]
    not_finite = f" First not finite at step {curve['nonfinite'][0]}." if curve["nonfinite"] else ""
    if not known:
        return f"{curve['name'].capitalize()}: no finite value.{not_finite}"
    low = min(value for value in curve["low"] if value is not None)
    high = max(value for value in curve["high"] if value is not None)
    return (
        f"{curve['name'].capitalize()}: {known[0]:.4g} at the start, {known[-1]:.4g} at the end, "
        f"{low:.4g} to {high:.4g} in between.{not_finite}"
    )


def _number(identity: str) -> str:
    """Return ``1`` for the incident ``0001-dead-rank``."""
    number = identity.partition("-")[0]
    return str(int(number)) if number.isdecimal() else number[:8]
