"""Turns the description of a panel into the SDK's builder of it."""

import string
from typing import TypeAlias
from urllib.parse import quote

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.grafana.model import Link, Panel, Query

PanelBuilder: TypeAlias = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel

DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The variable with the data source, which every panel and query uses."""


def panel_of(panel: Panel) -> PanelBuilder:
    """Return the builder of a panel, without its id."""
    builder = {"timeseries": _time_series, "stat": _stat, "bars": _bars, "table": _table}[panel.kind](panel)
    builder = (
        builder.title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(DATASOURCE)
        .span(panel.width)
        .height(panel.height)
    )
    if panel.decimals is not None:
        builder = builder.decimals(panel.decimals)
    if panel.links:
        builder = builder.data_links([_data_link(link) for link in panel.links])
    for ref_id, query in _lettered(panel):
        builder = builder.with_target(_target(panel, query, ref_id))
    return builder


def link_url(link: Link) -> str:
    """Return the address that a click opens: data source and time stay as they are."""
    chosen = "".join(f"&var-{name}={quote(value, safe='${}_.:')}" for name, value in link.variables.items())
    return f"/d/{link.dashboard}?${{datasource:queryparam}}{chosen}&${{__url_time_range}}"


def _data_link(link: Link) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(link.title).type(models.DashboardLinkType.LINK).url(link_url(link))


def _lettered(panel: Panel) -> list[tuple[str, Query]]:
    return list(zip(string.ascii_uppercase, panel.queries, strict=False))


def _target(panel: Panel, query: Query, ref_id: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(ref_id).legend_format(query.legend).datasource(DATASOURCE)
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
    """Return a table whose rows are the label sets, with one column for each query that is not hidden."""
    # Grafana calls the value of a lone query "Value", and else "Value #A", "Value #B" ...
    letters = {ref_id: "Value" if len(panel.queries) == 1 else f"Value #{ref_id}" for ref_id, _ in _lettered(panel)}
    columns = {letters[ref_id]: query.legend for ref_id, query in _lettered(panel)}
    excluded = {letters[ref_id]: True for ref_id, query in _lettered(panel) if query.hidden}
    organize = {"excludeByName": {"Time": True, **excluded}, "renameByName": columns}
    shown = [query for query in panel.queries if not query.hidden]
    order = panel.sort_columns or tuple(query.legend for query in shown[:1])
    builder = (
        table.Panel()
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(models.DataTransformerConfig(id_val="organize", options=organize))
        .sort_by([common.TableSortByFieldState().display_name(column).desc(True) for column in order])
    )
    for query in shown:
        if query.unit is not None:
            builder = builder.override_by_name(
                query.legend, [models.DynamicConfigValue(id_val="unit", value=query.unit)]
            )
    for column, link in panel.column_links.items():
        links = [{"title": link.title, "url": link_url(link)}]
        builder = builder.override_by_name(column, [models.DynamicConfigValue(id_val="links", value=links)])
    return builder
