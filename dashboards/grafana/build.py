"""Turns a dashboard's description into Grafana's JSON with the Grafana Foundation SDK."""

import itertools
import json
import string
from typing import TypeAlias

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.grafana.model import Annotation, Dashboard, Panel, Query
from dashboards.links import METRICS_URL, RUNBOOK_URL

PanelBuilder: TypeAlias = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel

_DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def to_json(description: Dashboard) -> str:
    """Return the dashboard as the text of a JSON file."""
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
        .link(_link("Runbook", RUNBOOK_URL))
        .link(_link("Metrics", METRICS_URL))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_run_variable(description.run_query))
    )
    for annotation in description.annotations:
        builder = builder.annotation(_annotation(annotation))
    ids = itertools.count(1)
    for row in description.rows:
        builder = builder.with_row(dashboard.Row(row.title).id(next(ids)))
        for panel in row.panels:
            builder = builder.with_panel(_panel(panel).id(next(ids)))
    return json.dumps(builder.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _link(title: str, url: str) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(title).type(models.DashboardLinkType.LINK)
    return link.url(url).icon("doc").target_blank(True)


def _run_variable(query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("run")
        .label("Run")
        .datasource(_DATASOURCE)
        .query({"query": query, "refId": "run"})
        .definition(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _annotation(annotation: Annotation) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(annotation.name)
        .datasource(_DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color(annotation.color)
        .expr(annotation.expr)
        .title_format(annotation.title)
    )


def _panel(panel: Panel) -> PanelBuilder:
    builder = {"timeseries": _time_series, "stat": _stat, "bars": _bars, "table": _table}[panel.kind](panel)
    builder = (
        builder.title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(_DATASOURCE)
        .span(panel.width)
        .height(panel.height)
    )
    if panel.decimals is not None:
        builder = builder.decimals(panel.decimals)
    for ref_id, query in zip(string.ascii_uppercase, panel.queries, strict=False):
        builder = builder.with_target(_target(panel, query, ref_id))
    return builder


def _target(panel: Panel, query: Query, ref_id: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(ref_id).legend_format(query.legend).datasource(_DATASOURCE)
    if panel.kind == "timeseries":
        return target.range()
    target = target.instant()
    return target.format(PromQueryFormat.TABLE) if panel.kind == "table" else target


def _time_series(panel: Panel) -> timeseries.Panel:
    builder = timeseries.Panel().line_width(1).fill_opacity(10 if len(panel.queries) == 1 else 0)
    if panel.log_scale:
        scale = common.ScaleDistributionConfig().type(common_models.ScaleDistribution.LOG).log(10)
        builder = builder.scale_distribution(scale)
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    return builder.tooltip(tooltip.sort(common_models.SortOrder.DESCENDING))


def _stat(panel: Panel) -> stat.Panel:
    builder = stat.Panel().graph_mode(common_models.BigValueGraphMode.NONE).reduce_options(_newest_value())
    if panel.show_names:
        return builder.text_mode(common_models.BigValueTextMode.NAME)
    return builder


def _bars(_panel: Panel) -> bargauge.Panel:
    builder = bargauge.Panel().display_mode(common_models.BarGaugeDisplayMode.BASIC).min(0)
    return builder.orientation(common_models.VizOrientation.HORIZONTAL).reduce_options(_newest_value())


def _newest_value() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _table(panel: Panel) -> table.Panel:
    columns = {
        f"Value #{ref_id}": query.legend for ref_id, query in zip(string.ascii_uppercase, panel.queries, strict=False)
    }
    first = panel.queries[0].legend
    return (
        table.Panel()
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                id_val="organize", options={"excludeByName": {"Time": True}, "renameByName": columns}
            )
        )
        .sort_by([common.TableSortByFieldState().display_name(first).desc(True)])
    )
