"""The content of a dashboard, apart from Grafana's way to write it."""

from dataclasses import dataclass
from typing import Literal

PanelKind = Literal["timeseries", "stat", "bars", "table"]


@dataclass(frozen=True)
class Query:
    """One PromQL expression; ``legend`` is a template such as ``rank {{rank}}``, in tables a column's title."""

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel. Every kind but ``timeseries`` shows only the newest value."""

    title: str
    description: str
    unit: str
    """Grafana's name of the unit: s, bytes, percentunit, short, none."""
    queries: tuple[Query, ...]
    kind: PanelKind = "timeseries"
    width: int = 8
    """Columns of the grid's 24."""
    height: int = 8
    """Rows of the grid."""
    decimals: int | None = None
    """Digits after the point; None: Grafana chooses."""
    log_scale: bool = False
    """Whether the axis of a time series is logarithmic."""
    show_names: bool = False
    """Whether a stat shows its legend instead of its value."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Moments that Grafana draws as vertical lines on every time series."""

    name: str
    expr: str
    title: str
    color: str


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A dashboard of one run, chosen by the variable ``run``."""

    title: str
    uid: str
    description: str
    run_query: str
    """Query for the values of the variable ``run``."""
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...]
