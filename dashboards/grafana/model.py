"""The content of a dashboard, apart from Grafana's way to write it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PanelKind = Literal["timeseries", "stat", "bars", "table"]


@dataclass(frozen=True)
class Query:
    """One PromQL expression; ``legend`` is a template such as ``rank {{rank}}``, in tables a column's title."""

    expr: str
    legend: str
    unit: str | None = None
    """Unit of a table's column; None: the panel's."""
    hidden: bool = False
    """Whether a table leaves the value out and shows the labels only."""


@dataclass(frozen=True)
class Link:
    """A click that opens another dashboard about the same time, with ``variables`` set."""

    title: str
    dashboard: str
    """UID of the other dashboard."""
    variables: Mapping[str, str]
    """Variable of the other dashboard -> value, in Grafana's syntax for links: ``${__value.raw}``."""


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
    links: tuple[Link, ...] = ()
    """Links of each series."""
    column_links: Mapping[str, Link] = field(default_factory=dict)
    """Column of a table -> link of its cells."""
    sort_columns: tuple[str, ...] = ()
    """Columns by which a table is sorted, the highest first; none: that of the first query."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice above the panels."""

    name: str
    label: str
    query: str
    """Query for the values."""
    several: bool = False
    """Whether several values, or all, can be chosen. Queries then match it with ``=~``."""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Moments that Grafana draws as vertical lines on every time series."""

    name: str
    expr: str
    title: str
    color: str


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A dashboard. Its panels are laid out in rows from the top left, the most important first."""

    title: str
    uid: str
    description: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]
    annotations: tuple[Annotation, ...]
