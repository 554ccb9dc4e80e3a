"""Turns a dashboard's description into Grafana's JSON with the Grafana Foundation SDK."""

import itertools
import json
from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.grafana.model import Annotation, Dashboard, Variable
from dashboards.grafana.panels import DATASOURCE, panel_of
from dashboards.links import METRICS_URL, RUNBOOK_URL


def to_json(description: Dashboard, others: Sequence[Dashboard]) -> str:
    """Return the dashboard as the text of a JSON file. ``others``: those that it links to, in their order."""
    builder = (
        dashboard.Dashboard(description.title)
        .uid(description.uid)
        .description(description.description)
        .tags(["holdfast"])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for other in others:
        builder = builder.link(_dashboard_link(other))
    builder = builder.link(_page_link("Runbook", RUNBOOK_URL)).link(_page_link("Metrics", METRICS_URL))
    for variable in description.variables:
        builder = builder.with_variable(_variable(variable))
    for annotation in description.annotations:
        builder = builder.annotation(_annotation(annotation))
    ids = itertools.count(1)
    for panel in description.panels:
        builder = builder.with_panel(panel_of(panel).id(next(ids)))
    return json.dumps(builder.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _dashboard_link(other: Dashboard) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(other.title).type(models.DashboardLinkType.LINK).url(f"/d/{other.uid}")
    # Without a place, the SDK puts a link into a menu that is closed.
    return link.icon("dashboard").placement("").include_vars(True).keep_time(True)


def _page_link(title: str, url: str) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(title).type(models.DashboardLinkType.LINK)
    return link.url(url).icon("doc").placement("").target_blank(True)


def _variable(variable: Variable) -> dashboard.QueryVariable:
    built = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(DATASOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .definition(variable.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    if not variable.several:
        return built.sort(models.VariableSort.ALPHABETICAL_ASC)
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    built = built.multi(True).include_all(True).all_value(".*").current(everything)
    return built.sort(models.VariableSort.NATURAL_ASC)


def _annotation(annotation: Annotation) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(annotation.name)
        .datasource(DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color(annotation.color)
        .expr(annotation.expr)
        .title_format(annotation.title)
    )
