"""What the dashboards share: variables, annotations, links between them, and shapes of queries."""

from dashboards.grafana.model import Annotation, Link, Variable

SHOWN = 10
"""Ranks that a time series shows, so that large runs stay readable."""

RUN_VARIABLE = Variable(name="run", label="Run", query="label_values(holdfast_run_info, run)")
RANK_VARIABLE = Variable(
    name="rank", label="Rank", query='label_values(holdfast_rank_info{run="$run"}, rank)', several=True
)
NODE_VARIABLE = Variable(
    name="node", label="Node", query='label_values(holdfast_node_info{run="$run"}, node)', several=True
)

RUN_ANNOTATIONS = (
    Annotation(
        name="Alerts",
        expr='ALERTS{run="$run", alertstate="firing", severity!="none"}',
        title="{{alertname}}",
        color="red",
    ),
    Annotation(
        name="Restarts",
        expr='changes(holdfast_run_generation{run="$run"}[$__rate_interval]) > 0',
        title="Restart",
        color="orange",
    ),
)

_THIS_RUN = "${run}"
RANK_OF_SERIES = Link("This rank", "holdfast-ranks", {"run": _THIS_RUN, "rank": "${__field.labels.rank}"})
"""Link of a time series or bar that belongs to one rank."""
RANK_OF_CELL = Link("This rank", "holdfast-ranks", {"run": _THIS_RUN, "rank": "${__value.raw}"})
"""Link of a table's column ``rank``."""
NODE_OF_CELL = Link("This node", "holdfast-nodes", {"run": _THIS_RUN, "node": "${__value.raw}"})
"""Link of a table's column ``node``."""
RUN_OF_SERIES = Link("This run", "holdfast-run", {"run": "${__field.labels.run}"})
"""Link of a time series or bar that belongs to one run."""
RUN_OF_CELL = Link("This run", "holdfast-run", {"run": "${__value.raw}"})
"""Link of a table's column ``run``."""


def highest(expression: str) -> str:
    """Return the series with the highest values."""
    return f"topk({SHOWN}, {expression})"


def quantile(value: float, metric: str, selector: str = 'run="$run"') -> str:
    """Return a quantile of a histogram over time."""
    return f"histogram_quantile({value}, sum by (le) (rate({metric}_bucket{{{selector}}}[$__rate_interval])))"


def quantile_in_range(value: float, metric: str) -> str:
    """Return a quantile of a histogram within the range shown."""
    return f'histogram_quantile({value}, sum by (le) (increase({metric}_bucket{{run="$run"}}[$__range])))'
