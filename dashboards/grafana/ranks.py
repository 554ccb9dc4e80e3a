"""Row: which rank is it? Time series show the ten highest ranks, so that large runs stay readable."""

from dashboards.grafana.model import Panel, Query, Row

_SHOWN = 10
_STEP = 'max by (run, rank) (holdfast_rank_step{run="$run"})'
_PROGRESS = 'max by (run, rank) (holdfast_rank_last_progress_timestamp_seconds{run="$run"})'
_ENQUEUED = 'max by (run, group, rank) (holdfast_rank_collective_seq{run="$run", point="enqueued"})'
_COMPLETED = 'max by (run, group, rank) (holdfast_rank_collective_seq{run="$run", point="completed"})'


def _with_place(expression: str) -> str:
    # For a moment, two agents export a rank that moves to another node: topk picks one of them.
    place = 'topk by (run, rank) (1, holdfast_rank_info{run="$run"})'
    return f"sum by (rank, node, gpu) (({expression}) * on (run, rank) group_left (node, gpu) {place})"


def _highest(expression: str) -> str:
    return f"topk({_SHOWN}, {expression})"


def _rate_per_rank(metric: str) -> str:
    return f'sum by (rank) (rate({metric}{{run="$run"}}[$__rate_interval]))'


ROW = Row(
    title="Which rank?",
    panels=(
        Panel(
            title="Ranks, longest without progress first",
            description="A rank that waits for another one stalls, too. The culprit is the one that is furthest "
            "behind; the incident names it.",
            unit="none",
            kind="table",
            width=24,
            height=10,
            queries=(
                Query(_with_place(f"time() - {_PROGRESS}"), "Seconds without progress"),
                Query(_with_place(f"scalar(max({_STEP})) - {_STEP}"), "Steps behind"),
                Query(_with_place('max by (run, rank) (holdfast_rank_up{run="$run"})'), "Alive"),
            ),
        ),
        Panel(
            title="Time without progress",
            description="Time since the last change of step, phase or collective number: the ten longest.",
            unit="s",
            queries=(Query(_highest(f"time() - {_PROGRESS}"), "rank {{rank}}"),),
        ),
        Panel(
            title="Collectives behind the front",
            description="Collectives that the furthest member of the group has enqueued and this rank has not. In a "
            "hang, the rank that the others wait for is behind.",
            unit="none",
            queries=(
                Query(
                    _highest(f"max by (run, group) ({_ENQUEUED}) - on (run, group) group_right () {_ENQUEUED}"),
                    "rank {{rank}}, group {{group}}",
                ),
            ),
        ),
        Panel(
            title="Collectives in flight",
            description="Collectives that a rank has enqueued and not completed, by group.",
            unit="none",
            queries=(Query(_highest(f"{_ENQUEUED} - {_COMPLETED}"), "rank {{rank}}, group {{group}}"),),
        ),
        Panel(
            title="Slowest ranks",
            description="Duration of the newest step. If steps synchronise all ranks, look at the phases instead.",
            unit="s",
            queries=(
                Query(_highest('max by (rank) (holdfast_rank_step_duration_seconds{run="$run"})'), "rank {{rank}}"),
            ),
        ),
        Panel(
            title="Waiting for data",
            description="Share of its time in which a rank waits for its data loader.",
            unit="percentunit",
            queries=(Query(_highest(_rate_per_rank("holdfast_rank_data_wait_seconds_total")), "rank {{rank}}"),),
        ),
        Panel(
            title="Memory",
            description="Device memory occupied by tensors, and reserved by the caching allocator: the fullest ranks.",
            unit="bytes",
            queries=(
                Query(
                    _highest('max by (rank) (holdfast_rank_memory_allocated_bytes{run="$run"})'),
                    "rank {{rank}} allocated",
                ),
                Query(
                    _highest('max by (rank) (holdfast_rank_memory_reserved_bytes{run="$run"})'),
                    "rank {{rank}} reserved",
                ),
            ),
        ),
        Panel(
            title="Memory trouble",
            description="Allocations per second that torch had to retry, and that failed.",
            unit="ops",
            queries=(
                Query(_highest(_rate_per_rank("holdfast_rank_alloc_retries_total")), "rank {{rank}} retries"),
                Query(_highest(_rate_per_rank("holdfast_rank_ooms_total")), "rank {{rank}} failures"),
            ),
        ),
    ),
)
