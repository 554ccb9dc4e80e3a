import itertools
import re
from typing import Any

import pytest

from dashboards.catalogue import fixed_values, series_names
from dashboards.queries import annotation_queries, matched_values, metric_names, panel_queries, rule_queries

MOST_PANELS = 13
VARIABLES = {
    "holdfast-runs": [],
    "holdfast-run": ["run"],
    "holdfast-ranks": ["run", "rank"],
    "holdfast-nodes": ["run", "node"],
    "holdfast-training": ["run"],
    "holdfast-checkpoints": ["run"],
    "holdfast-itself": ["run"],
}
"""UID -> variables besides the data source. Users keep links to both, so they stay."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panels(dashboard: Any) -> list[Any]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_nothing_is_editable(dashboard: Any) -> None:
    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] == 42


def test_uids_and_variables_are_those_that_links_of_users_name(dashboards: Any) -> None:
    assert {dashboard["uid"] for dashboard in dashboards.values()} == set(dashboards) == set(VARIABLES)


def test_variables_are_one_data_source_and_places(dashboard: Any) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", *VARIABLES[dashboard["uid"]]]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for variable in list(variables.values())[1:]:
        assert variable["datasource"] == DATASOURCE
        assert variable["query"]["query"].startswith("label_values(")
        assert variable["refresh"] == 2  # when the time range changes: the linter's rule
        assert variable.get("multi", False) == (variable["name"] != "run")


def test_a_dashboard_is_short(dashboard: Any) -> None:
    assert 1 < len(dashboard["panels"]) <= MOST_PANELS
    assert len(_panels(dashboard)) == len(dashboard["panels"])


def _data_links(panel: Any) -> list[str]:
    found = [link["url"] for link in panel["fieldConfig"]["defaults"].get("links", ())]
    for override in panel["fieldConfig"].get("overrides", ()):
        found += [link["url"] for each in override["properties"] if each["id"] == "links" for link in each["value"]]
    return found


def test_every_dashboard_links_to_all_others_and_keeps_variables_and_time(dashboard: Any) -> None:
    links = [link for link in dashboard["links"] if link["url"].startswith("/d/")]
    assert {link["url"].removeprefix("/d/") for link in links} == set(VARIABLES) - {dashboard["uid"]}
    assert all(link["includeVars"] and link["keepTime"] and not link["placement"] for link in links)


def test_clicks_open_dashboards_that_exist_with_variables_that_they_have(dashboard: Any) -> None:
    for panel in _panels(dashboard):
        for url in _data_links(panel):
            opened = re.fullmatch(
                r"/d/([\w-]+)\?\$\{datasource:queryparam\}((?:&var-[^&]+)*)&\$\{__url_time_range\}", url
            )
            assert opened is not None, url
            chosen = dict(re.findall(r"&var-(\w+)=([^&]+)", opened[2]))
            assert chosen.keys() == set(VARIABLES[opened[1]]) & chosen.keys(), url
            assert "run" in chosen, url


def test_a_click_on_a_series_finds_the_label_that_it_sends(dashboard: Any) -> None:
    for panel in _panels(dashboard):
        for link in panel["fieldConfig"]["defaults"].get("links", ()):
            for label in re.findall(r"__field\.labels\.(\w+)", link["url"]):
                for target in panel["targets"]:
                    kept = re.findall(r"(?:by|group_left) \(([^)]*)\)", target["expr"])
                    recorded = target["expr"].startswith(f"{label}:")
                    assert recorded or any(label in labels.split(", ") for labels in kept), target["expr"]


def test_the_way_leads_from_all_runs_to_one_and_to_its_ranks(dashboards: Any) -> None:
    def opened(uid: str) -> set[str]:
        urls = [url for panel in _panels(dashboards[uid]) for url in _data_links(panel)]
        return {re.split(r"[/?]", url)[2] for url in urls}

    assert opened("holdfast-runs") == {"holdfast-run"}
    assert opened("holdfast-ranks") == {"holdfast-ranks", "holdfast-nodes"}
    table = next(panel for panel in dashboards["holdfast-runs"]["panels"] if panel["title"] == "Runs")
    assert _data_links(table) == ["/d/holdfast-run?${datasource:queryparam}&var-run=${__value.raw}&${__url_time_range}"]


def test_columns_with_links_or_units_exist(dashboard: Any) -> None:
    for panel in _panels(dashboard):
        if panel["type"] == "table":
            titles = set(panel["transformations"][1]["options"]["renameByName"].values())
            labels = {label for target in panel["targets"] for label in re.findall(r"by \(([^)]*)\)", target["expr"])}
            known = titles | {label for group in labels for label in group.split(", ")}
            named = {override["matcher"]["options"] for override in panel["fieldConfig"].get("overrides", ())}
            sorts = {each["displayName"] for each in panel["options"].get("sortBy", ())}
            assert named | sorts <= known, panel["title"]


def test_every_panel_has_title_description_unit_and_the_data_source(dashboard: Any) -> None:
    for panel in _panels(dashboard):
        assert panel["title"], panel
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for user in (panel, *panel["targets"]):
            assert user["datasource"] == DATASOURCE, panel["title"]


def test_panel_ids_and_titles_are_unique(dashboard: Any) -> None:
    for key in ("id", "title"):
        values = [panel[key] for panel in dashboard["panels"]]
        assert len(values) == len(set(values)), key


def test_panels_do_not_overlap(dashboard: Any) -> None:
    for one, other in itertools.combinations((panel["gridPos"] for panel in dashboard["panels"]), 2):
        side_by_side = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert side_by_side or above, (one, other)


def test_rates_follow_the_resolution_of_the_screen(dashboard: Any) -> None:
    expressions = [target["expr"] for panel in _panels(dashboard) for target in panel["targets"]]
    for expression in expressions:
        for function, window in re.findall(r"\b(rate|irate|increase)\([^\[]*\[([^\]]+)\]", expression):
            assert window == ("$__range" if function == "increase" else "$__rate_interval"), expression


def test_every_query_is_about_what_was_chosen(dashboard: Any) -> None:
    if dashboard["uid"] == "holdfast-runs":
        return
    for panel in _panels(dashboard):
        for target in panel["targets"]:
            selectors = re.findall(r"\b(?:holdfast_\w+|ALERTS|up)\b(\{[^}]*\})?", target["expr"])
            assert selectors, target
            assert all('run="$run"' in selector or 'run=~"$run|"' in selector for selector in selectors), target


@pytest.mark.parametrize(("uid", "variable"), [("holdfast-ranks", "rank"), ("holdfast-nodes", "node")])
def test_every_panel_follows_the_choice_of_ranks_or_nodes(dashboards: Any, uid: str, variable: str) -> None:
    for panel in _panels(dashboards[uid]):
        for target in panel["targets"]:
            assert f'{variable}=~"${variable}"' in target["expr"], panel["title"]


def test_panels_and_annotations_use_metrics_of_the_catalogue_only(dashboard: Any, rules: Any) -> None:
    recorded = {name for name, _ in rule_queries(rules) if ":" in name}
    for title, expression in panel_queries(dashboard) + annotation_queries(dashboard):
        assert metric_names(expression) <= series_names() | recorded, title


def test_panels_select_label_values_that_exist(dashboard: Any) -> None:
    free = {"run", "rank", "node", "alertstate", "alertname", "device", "mode"}
    for title, expression in panel_queries(dashboard):
        for label, value in matched_values(expression):
            assert label in free or value in fixed_values(label), title


def test_alerts_are_drawn_on_time_series(dashboard: Any) -> None:
    assert any("ALERTS" in expression for _, expression in annotation_queries(dashboard))
