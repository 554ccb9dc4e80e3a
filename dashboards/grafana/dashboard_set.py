"""The linked set of dashboards, in the order of their links."""

from dashboards.grafana.all_runs import ALL_RUNS
from dashboards.grafana.checkpoints import CHECKPOINTS
from dashboards.grafana.nodes import NODES
from dashboards.grafana.one_run import ONE_RUN
from dashboards.grafana.ranks import RANKS
from dashboards.grafana.sidecar import SIDECAR
from dashboards.grafana.training import TRAINING

DASHBOARDS = (ALL_RUNS, ONE_RUN, RANKS, NODES, TRAINING, CHECKPOINTS, SIDECAR)
