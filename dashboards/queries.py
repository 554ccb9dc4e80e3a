"""The PromQL expressions inside dashboards and rule files."""

import re
from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]

_MATCHER = re.compile(r'(\w+)=~?"([^"]*)"')
_LABEL_VALUES = re.compile(r"label_values\((.+), \w+\)")
_NAME = re.compile(r"\b(?:holdfast_\w+|[a-z_]+:[a-z0-9_]+:[a-z0-9_]+)")


def panel_queries(
    dashboard: JsonObject, *, run: str = "demo", rate_interval: str = "1m", time_range: str = "1h"
) -> list[tuple[str, str]]:
    """Return (panel title, expression) for every query of every panel, template variables replaced.

    ``rate_interval`` and ``time_range`` are PromQL durations, at least four times the scrape interval.
    """
    values = _variable_values(run, rate_interval, time_range)
    return [
        (panel["title"], _substitute(target["expr"], values))
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def annotation_queries(
    dashboard: JsonObject, *, run: str = "demo", rate_interval: str = "1m", time_range: str = "1h"
) -> list[tuple[str, str]]:
    """Return (annotation name, expression), template variables replaced as in `panel_queries`."""
    values = _variable_values(run, rate_interval, time_range)
    return [
        (annotation["name"], _substitute(annotation["expr"], values)) for annotation in dashboard["annotations"]["list"]
    ]


def variable_queries(dashboard: JsonObject, *, run: str = "demo") -> list[tuple[str, str]]:
    """Return (variable, expression): the series from which Grafana takes the values of each variable."""
    queries = [each for each in dashboard["templating"]["list"] if each["type"] == "query"]
    selectors = ((each["name"], _LABEL_VALUES.fullmatch(each["query"]["query"])) for each in queries)
    return [(name, _substitute(found[1], {"run": run})) for name, found in selectors if found is not None]


def rule_queries(rule_file: JsonObject) -> list[tuple[str, str]]:
    """Return (alert or recorded name, expression) for every rule of a parsed rule file."""
    return [
        (rule.get("alert") or rule["record"], rule["expr"]) for group in rule_file["groups"] for rule in group["rules"]
    ]


def metric_names(expression: str) -> frozenset[str]:
    """Names of our own series, exported or recorded, that an expression uses."""
    return frozenset(_NAME.findall(expression))


def matched_values(expression: str) -> frozenset[tuple[str, str]]:
    """Every (label, value) that the expression selects; alternatives of a regular expression count apart."""
    return frozenset((label, value) for label, pattern in _MATCHER.findall(expression) for value in pattern.split("|"))


def _variable_values(run: str, rate_interval: str, time_range: str) -> dict[str, str]:
    # All ranks and nodes: `.*` is what the variables send for "All".
    return {"run": run, "rank": ".*", "node": ".*", "__rate_interval": rate_interval, "__range": time_range}


def _substitute(expression: str, values: Mapping[str, str]) -> str:
    # An unknown variable is a KeyError here. $1 is a group of a regular expression.
    return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda match: values[match.group(1)], expression)
