"""The dashboard of nodes and devices.

Holdfast exports what its agents read of the GPUs of ranks. The rest is joined from dcgm-exporter, by the label
``UUID``, and from node_exporter, whose host name is the name of the node.
"""

from dashboards.grafana.common import NODE_OF_CELL, NODE_VARIABLE, RANK_OF_SERIES, RUN_ANNOTATIONS, RUN_VARIABLE
from dashboards.grafana.model import Dashboard, Panel, Query

_CHOSEN = 'run="$run", node=~"$node"'
_PLACE = f"topk by (run, rank) (1, holdfast_rank_info{{{_CHOSEN}}})"
# An agent that is down has no series. Its node shall keep its row.
_NODE = f"max by (instance, node) (last_over_time(holdfast_node_info{{{_CHOSEN}}}[$__range]))"
_GPU = "node {{node}}, GPU {{gpu}}"


def _of_node(aggregation: str, metric: str) -> str:
    """Return the values of a node's ranks, aggregated."""
    values = f'max by (run, rank) ({metric}{{run="$run"}})'
    return f"{aggregation} by (node) ({values} * on (run, rank) group_left (node) {_PLACE})"


def _gpu(metric: str, selector: str = "") -> str:
    return f"max by (node, gpu, UUID) ({metric}{{{_CHOSEN}{selector}}})"


def _of_rank(metric: str) -> str:
    """Return a metric of dcgm-exporter with the rank that uses the GPU."""
    user = f'topk by (UUID) (1, holdfast_rank_info{{{_CHOSEN}, UUID!=""}})'
    return f"{metric} * on (UUID) group_left (run, rank) {user}"


def _of_host(expression: str) -> str:
    """Return a metric of node_exporter, by the name of the node. Only nodes of the run have it."""
    named = f"({expression}) * on (instance) group_left (nodename) node_uname_info"
    of_run = f"max by (node) (holdfast_node_info{{{_CHOSEN}}})"
    return f'max by (node) (label_replace({named}, "node", "$1", "nodename", "(.*)")) * on (node) {of_run}'


PANELS = (
    Panel(
        title="Nodes",
        description="One row for each node: its agent, its ranks, and the longest time that one of them has made no "
        "progress.",
        unit="none",
        kind="table",
        width=24,
        height=7,
        column_links={"node": NODE_OF_CELL},
        sort_columns=("Longest without progress",),
        queries=(
            Query(
                f'max by (node) (up{{component="agent", run="$run"}} * on (instance) group_left (node) {_NODE})',
                "Agent answers",
            ),
            Query(f"count by (node) ({_PLACE})", "Ranks"),
            Query(_of_node("sum", "holdfast_rank_up"), "Ranks alive"),
            Query(
                f"time() - {_of_node('min', 'holdfast_rank_last_progress_timestamp_seconds')}",
                "Longest without progress",
                "s",
            ),
        ),
    ),
    Panel(
        title="GPUs",
        description="One row for each GPU of a rank, the hottest first. Up is 0 while the driver does not reach it.",
        unit="none",
        kind="table",
        width=24,
        height=8,
        column_links={"node": NODE_OF_CELL},
        queries=(
            Query(_gpu("holdfast_gpu_temperature_celsius"), "Temperature", "celsius"),
            Query(_gpu("holdfast_gpu_up"), "Up"),
            Query(_gpu("holdfast_gpu_utilization_ratio"), "Utilisation", "percentunit"),
            Query(
                f"{_gpu('holdfast_gpu_memory_used_bytes')} / {_gpu('holdfast_gpu_memory_total_bytes')}",
                "Memory used",
                "percentunit",
            ),
            Query(_gpu("holdfast_gpu_power_watts"), "Power", "watt"),
            Query(_gpu("holdfast_gpu_sm_clock_hertz"), "Clock", "hertz"),
        ),
    ),
    Panel(
        title="GPUs slowed down",
        description="1 while the clocks of a GPU are lower for this reason. All but sw_power_cap mean heat or too "
        "little power.",
        unit="none",
        queries=(
            Query(
                f"max by (node, gpu, reason) (holdfast_gpu_throttled{{{_CHOSEN}}})",
                "node {{node}}, GPU {{gpu}}: {{reason}}",
            ),
        ),
    ),
    Panel(
        title="Errors of GPUs",
        description="Errors of GPUs since the driver was loaded, and Xids since the agent started. It should stay 0.",
        unit="none",
        queries=(
            Query(_gpu("holdfast_gpu_ecc_uncorrected_errors_total"), f"{_GPU}: ECC"),
            Query(_gpu("holdfast_gpu_nvlink_errors_total"), f"{_GPU}: NVLink"),
            Query(_gpu("holdfast_gpu_row_remap_failed"), f"{_GPU}: row not remapped"),
            Query(
                f"max by (node, gpu, xid) (holdfast_gpu_xid_errors_total{{{_CHOSEN}}})",
                f"{_GPU}: Xid {{{{xid}}}}",
            ),
        ),
    ),
    Panel(
        title="Drivers",
        description="1 while the driver of a node answers its agent, 0 while it hangs. Nodes without a GPU have none.",
        unit="none",
        queries=(Query(f"max by (node) (holdfast_gpu_driver_up{{{_CHOSEN}}})", "{{node}}"),),
    ),
    Panel(
        title="GPU utilisation",
        description="Share of the last moments in which a kernel ran on the GPU. One that waits for others counts.",
        unit="percentunit",
        queries=(Query(_gpu("holdfast_gpu_utilization_ratio"), _GPU),),
    ),
    Panel(
        title="Tensor cores busy",
        description="Share of cycles in which the tensor cores of a rank's GPU work. From dcgm-exporter.",
        unit="percentunit",
        links=(RANK_OF_SERIES,),
        queries=(Query(_of_rank("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), "rank {{rank}}"),),
    ),
    Panel(
        title="GPU temperature by rank",
        description="Temperature of the GPU that each rank uses. From dcgm-exporter.",
        unit="celsius",
        links=(RANK_OF_SERIES,),
        queries=(Query(_of_rank("DCGM_FI_DEV_GPU_TEMP"), "rank {{rank}}"),),
    ),
    Panel(
        title="Processors",
        description="Share of a node's processor time that is used. From node_exporter.",
        unit="percentunit",
        queries=(
            Query(
                _of_host('1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[$__rate_interval]))'),
                "{{node}}",
            ),
        ),
    ),
    Panel(
        title="Memory available",
        description="Memory of a node that processes can still get. From node_exporter.",
        unit="bytes",
        queries=(Query(_of_host("node_memory_MemAvailable_bytes"), "{{node}}"),),
    ),
    Panel(
        title="Network",
        description="Bytes per second that a node sends and receives, without its loopback. From node_exporter.",
        unit="Bps",
        queries=tuple(
            Query(
                _of_host(f'sum by (instance) (rate(node_network_{way}_bytes_total{{device!="lo"}}[$__rate_interval]))'),
                f"{{{{node}}}} {words}",
            )
            for way, words in (("receive", "receives"), ("transmit", "sends"))
        ),
    ),
)

NODES = Dashboard(
    title="Holdfast: nodes and devices",
    uid="holdfast-nodes",
    description="The nodes of one run and their GPUs: agents, temperatures, errors, and what other exporters know.",
    variables=(RUN_VARIABLE, NODE_VARIABLE),
    panels=PANELS,
    annotations=RUN_ANNOTATIONS,
)
