"""The dashboard of ranks: which one is it? Time series show the ten highest of those chosen."""

from dashboards.grafana.common import (
    NODE_OF_CELL,
    RANK_OF_CELL,
    RANK_OF_SERIES,
    RANK_VARIABLE,
    RUN_ANNOTATIONS,
    RUN_VARIABLE,
    highest,
)
from dashboards.grafana.model import Dashboard, Panel, Query

_CHOSEN = 'run="$run", rank=~"$rank"'
_FRONT = 'max(holdfast_rank_step{run="$run"})'
_STEP = f"max by (run, rank) (holdfast_rank_step{{{_CHOSEN}}})"
_PROGRESS = f"max by (run, rank) (holdfast_rank_last_progress_timestamp_seconds{{{_CHOSEN}}})"
_GROUP_FRONT = 'max by (run, group) (holdfast_rank_collective_seq{run="$run", point="enqueued"})'
_ENQUEUED = f'max by (run, group, rank) (holdfast_rank_collective_seq{{{_CHOSEN}, point="enqueued"}})'
_BEHIND = f"{_GROUP_FRONT} - on (run, group) group_right () {_ENQUEUED}"
_COMPLETED = f'max by (run, group, rank) (holdfast_rank_collective_seq{{{_CHOSEN}, point="completed"}})'


def _with_place(expression: str) -> str:
    # For a moment, two agents export a rank that moves to another node: topk picks one of them.
    place = 'topk by (run, rank) (1, holdfast_rank_info{run="$run"})'
    return f"sum by (rank, node, gpu) (({expression}) * on (run, rank) group_left (node, gpu) {place})"


def _rate_per_rank(metric: str) -> str:
    return f"sum by (rank) (rate({metric}{{{_CHOSEN}}}[$__rate_interval]))"


PANELS = (
    Panel(
        title="Ranks, the odd one first",
        description="Sorted by collectives behind the front of a group, then by time without progress. A rank that "
        "waits for another one stalls, too: the culprit is behind. The incident names it.",
        unit="none",
        kind="table",
        column_links={"rank": RANK_OF_CELL, "node": NODE_OF_CELL},
        width=24,
        height=10,
        sort_columns=("Collectives behind", "Without progress"),
        queries=(
            Query(_with_place(f"time() - {_PROGRESS}"), "Without progress", "s"),
            Query(_with_place(f"max by (run, rank) ({_BEHIND})"), "Collectives behind"),
            Query(_with_place(f"scalar({_FRONT}) - {_STEP}"), "Steps behind"),
            Query(_with_place(f"max by (run, rank) (holdfast_rank_up{{{_CHOSEN}}})"), "Alive"),
        ),
    ),
    Panel(
        title="Time without progress",
        links=(RANK_OF_SERIES,),
        description="Time since the last change of step, phase or collective number: the ten longest.",
        unit="s",
        queries=(Query(highest(f"time() - {_PROGRESS}"), "rank {{rank}}"),),
    ),
    Panel(
        title="Collectives behind the front",
        links=(RANK_OF_SERIES,),
        description="Collectives that the furthest member of the group has enqueued and this rank has not. In a "
        "hang, the rank that the others wait for is behind.",
        unit="none",
        queries=(
            Query(
                highest(_BEHIND),
                "rank {{rank}}, group {{group}}",
            ),
        ),
    ),
    Panel(
        title="Collectives in flight",
        links=(RANK_OF_SERIES,),
        description="Collectives that a rank has enqueued and not completed, by group.",
        unit="none",
        queries=(Query(highest(f"{_ENQUEUED} - {_COMPLETED}"), "rank {{rank}}, group {{group}}"),),
    ),
    Panel(
        title="Slowest ranks",
        links=(RANK_OF_SERIES,),
        description="Duration of the newest step. If steps synchronise all ranks, look at the phases instead.",
        unit="s",
        queries=(Query(highest(f"max by (rank) (holdfast_rank_step_duration_seconds{{{_CHOSEN}}})"), "rank {{rank}}"),),
    ),
    Panel(
        title="Waiting for data",
        links=(RANK_OF_SERIES,),
        description="Share of its time in which a rank waits for its data loader.",
        unit="percentunit",
        queries=(Query(highest(_rate_per_rank("holdfast_rank_data_wait_seconds_total")), "rank {{rank}}"),),
    ),
    Panel(
        title="Waiting for other ranks",
        description="Share of its time in which a rank on CPU sleeps while a call with other ranks is pending: an "
        "estimate. The rank that waits least is the one that the others wait for.",
        unit="percentunit",
        links=(RANK_OF_SERIES,),
        queries=(Query(highest(_rate_per_rank("holdfast_rank_communication_wait_seconds_total")), "rank {{rank}}"),),
    ),
    Panel(
        title="Where the time goes",
        description="Share of the chosen ranks' time in each phase.",
        unit="percentunit",
        queries=(
            Query(
                f"sum by (phase) (rate(holdfast_rank_phase_seconds_total{{{_CHOSEN}}}[$__rate_interval]))"
                f" / scalar(sum(rate(holdfast_rank_phase_seconds_total{{{_CHOSEN}}}[$__rate_interval])))",
                "{{phase}}",
            ),
        ),
    ),
    Panel(
        title="Memory",
        links=(RANK_OF_SERIES,),
        description="Device memory occupied by tensors, and reserved by the caching allocator: the fullest ranks.",
        unit="bytes",
        queries=(
            Query(
                highest(f"max by (rank) (holdfast_rank_memory_allocated_bytes{{{_CHOSEN}}})"),
                "rank {{rank}} allocated",
            ),
            Query(
                highest(f"max by (rank) (holdfast_rank_memory_reserved_bytes{{{_CHOSEN}}})"),
                "rank {{rank}} reserved",
            ),
        ),
    ),
    Panel(
        title="Memory trouble",
        links=(RANK_OF_SERIES,),
        description="Allocations per second that torch had to retry, and that failed.",
        unit="ops",
        queries=(
            Query(highest(_rate_per_rank("holdfast_rank_alloc_retries_total")), "rank {{rank}} retries"),
            Query(highest(_rate_per_rank("holdfast_rank_ooms_total")), "rank {{rank}} failures"),
        ),
    ),
    Panel(
        title="How stragglers are found",
        description="Source of the time that a rank needs for itself. With none, Holdfast finds no straggler, and the "
        "reason says why.",
        unit="none",
        kind="table",
        column_links={"rank": RANK_OF_CELL},
        queries=(
            Query(f"max by (rank, source, reason) (holdfast_rank_own_time_info{{{_CHOSEN}}})", "known", hidden=True),
        ),
    ),
)

RANKS = Dashboard(
    title="Holdfast: ranks",
    uid="holdfast-ranks",
    description="The ranks of one run: which one is odd, what it waits for, and what it uses.",
    variables=(RUN_VARIABLE, RANK_VARIABLE),
    panels=PANELS,
    annotations=RUN_ANNOTATIONS,
)
