"""What --explain adds to a plan: the costs of collectives, of pipelines and of more GPUs, and each formula."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast_cli.plans.layout_tables import plain_table
from holdfast_cli.plans.unit_text import duration_text, number_text, size_text, value_text
from holdfast_trainer.planning.collectives import Operation
from holdfast_trainer.planning.formulas import Term
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import rank_parameters
from holdfast_trainer.planning.pipeline_schedule import Efficiency
from holdfast_trainer.planning.plan import Plan, PrecisionNeeds, pipeline_places
from holdfast_trainer.planning.state_memory import MASTER_BYTES
from holdfast_trainer.planning.whole_run import Scale

Details = dict[str, Sequence[Any]]
"""``precisions``, ``calls``, ``pipeline``, ``scaling`` and ``formulas`` of a layout."""


def detail_lines(details: Details) -> list[RenderableType]:
    """Return the tables of all details that a layout has, and its formulas."""
    tables = (
        ("precisions", 1, precision_table),
        ("calls", 1, links_table),
        ("pipeline", 1, pipeline_table),
        ("scaling", 2, scaling_table),
    )
    shown: list[RenderableType] = [table(details[name]) for name, least, table in tables if len(details[name]) >= least]
    return [*shown, *formula_lines(details["formulas"])]


@dataclass(frozen=True)
class CallTimes:
    """The times of one call, for messages of several sizes."""

    operation: str
    where: str
    ranks: int
    nodes: int
    duration_s: Mapping[float, float]
    """Bytes -> seconds."""


def call_times(plan: Plan, cluster: Cluster) -> Iterator[CallTimes]:
    """Yield each operation within a node and between all ranks, for 1 MB and for the gradients of a block."""
    per_node, ranks = cluster.gpus_per_node, plan.config.parallel.ranks
    groups = {"in a node": min(per_node, ranks), "of all ranks": ranks}
    block = rank_parameters(plan.config, pipeline_places(plan.config)[0]).block_elements
    sizes = (1e6, float(MASTER_BYTES * block))
    for where, size in groups.items():
        if size == 1 or (where == "of all ranks" and ranks <= per_node):
            continue
        group = cluster.group(size=size, stride=1)
        both = {nbytes: group.all_reduce_s(nbytes) for nbytes in sizes}
        times = {f"all-reduce, {way}": {nbytes: both[nbytes][way] for nbytes in sizes} for way in ("ring", "tree")}
        others: Sequence[Operation] = ("all-gather", "reduce-scatter", "all-to-all")
        times |= {one: {nbytes: group.duration_s(one, nbytes) for nbytes in sizes} for one in others}
        for operation, durations in times.items():
            yield CallTimes(operation, where, group.ranks, group.nodes, durations)


def links_table(calls: Sequence[CallTimes]) -> Table:
    """Return the time of one call of each operation."""
    table = plain_table("one call", "ranks", "nodes", *map(size_text, calls[0].duration_s))
    for call in calls:
        times = map(duration_text, call.duration_s.values())
        table.add_row(f"{call.operation} {call.where}", str(call.ranks), str(call.nodes), *times)
    return table


def precision_table(needs: Iterable[PrecisionNeeds]) -> Table:
    """Return state, activations and computation of a layout in each precision."""
    table = plain_table("precision", "state", "activ: none", "selective", "full", "computation")
    for one in needs:
        compute = "-" if one.compute_s is None else duration_text(one.compute_s)
        table.add_row(
            one.precision, size_text(one.state_bytes), *map(size_text, one.activation_bytes.values()), compute
        )
    return table


def pipeline_table(rows: Iterable[Efficiency]) -> Table:
    """Return the share of time in which ranks of a pipeline work, by schedule and number of microbatches."""
    every = list(rows)
    counts = [str(count) for count in every[0].shares] if every else []
    table = plain_table("pipeline works", *(f"m = {count}" for count in counts), "90% from m =")
    for row in every:
        table.add_row(row.schedule, *(f"{share:.1%}" for share in row.shares.values()), str(row.count_for_most))
    return table


def scaling_table(scales: Iterable[Scale]) -> Table:
    """Return the throughput of more and more replicas, with the same batch."""
    table = plain_table("GPUs", "tokens/s", "tokens/s a GPU", "efficiency")
    for one in scales:
        per_gpu = one.tokens_per_s / one.gpus
        table.add_row(f"{one.gpus:,}", f"{one.tokens_per_s:,.0f}", f"{per_gpu:,.0f}", f"{one.efficiency:.1%}")
    return table


def formula_lines(terms: Iterable[Term]) -> list[RenderableType]:
    """Return each formula with its numbers filled in, each use once."""
    lines: list[RenderableType] = [Text("formulas, with their numbers:", style="bold")]
    for term in dict.fromkeys(
        (term.name, term.formula, tuple(term.numbers.items()), term.value, term.unit) for term in terms
    ):
        name, formula, numbers, value, unit = term
        filled = ", ".join(f"{key} = {number_text(number)}" for key, number in numbers)
        lines += [
            Text(f"{name} = {value_text(value, unit)}"),
            Padding(Text(formula, style="green"), (0, 0, 0, 4), expand=False),
            Padding(Text(filled, style="dim"), (0, 0, 0, 4), expand=False),
        ]
    return lines
