import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from dashboards.catalogue import fixed_values, series_names
from dashboards.queries import annotation_queries, matched_values, metric_names, panel_queries

REPOSITORY = Path(__file__).resolve().parents[2]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panels(dashboard: Any) -> list[Any]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_committed_dashboard_is_what_the_generator_writes() -> None:
    result = subprocess.run(
        [sys.executable, "dashboards/grafana/generate.py", "--check"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_nothing_is_editable(dashboard: Any) -> None:
    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] == 42


def test_variables_are_one_data_source_and_the_run(dashboard: Any) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "run"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["run"]["datasource"] == DATASOURCE
    assert variables["run"]["query"]["query"].startswith("label_values(")


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


def test_every_query_is_about_the_chosen_run(dashboard: Any) -> None:
    for panel in _panels(dashboard):
        for target in panel["targets"]:
            selectors = re.findall(r"\b(?:holdfast_\w+|ALERTS|up)\b(\{[^}]*\})?", target["expr"])
            assert all('run="$run"' in selector or 'run=~"$run|"' in selector for selector in selectors), target


def test_panels_and_annotations_use_metrics_of_the_catalogue_only(dashboard: Any) -> None:
    for title, expression in panel_queries(dashboard) + annotation_queries(dashboard):
        assert metric_names(expression) <= series_names(), title


def test_panels_select_label_values_that_exist(dashboard: Any) -> None:
    for title, expression in panel_queries(dashboard):
        for label, value in matched_values(expression):
            assert label in {"run", "alertstate"} or value in fixed_values(label), title


def test_alerts_are_drawn_on_time_series(dashboard: Any) -> None:
    assert any("ALERTS" in expression for _, expression in annotation_queries(dashboard))
