"""Tables of a plan or a search for people, and the same as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast_cli.views.plan_command import on_one_line, on_several_lines, places_to_set
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.activations import block_bytes_per_token, microbatch_tokens
from holdfast_trainer.planning.communication import LINK_EFFICIENCY
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import parameter_count
from holdfast_trainer.planning.plan import (
    USABLE_MEMORY,
    Plan,
    PlannedMemory,
    fits,
    largest,
    memory_plan,
    pipeline_places,
)
from holdfast_trainer.planning.search import Search
from holdfast_trainer.planning.step_time import COMPUTE_EFFICIENCY
from holdfast_trainer.planning.textbook import gpt_block_bytes, zero_bytes


@dataclass(frozen=True)
class Unit:
    """A unit and its size in bytes or seconds."""

    name: str
    size: float

    def number(self, value: float) -> str:
        """Return ``value`` in this unit, with three digits or two decimals, and never as a power of ten."""
        scaled = value / self.size
        if scaled >= 100 or not scaled:
            return f"{scaled:,.0f}"
        if scaled < 0.01:
            return "<0.01"
        return f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.2f}"


_SIZES = (Unit("TB", 1e12), Unit("GB", 1e9), Unit("MB", 1e6), Unit("KB", 1e3))
_DURATIONS = (Unit("s", 1.0), Unit("ms", 1e-3), Unit("µs", 1e-6))


def size_unit(sizes: Iterable[float]) -> Unit:
    """Return the unit for a column of sizes in bytes: the largest has at least one before the point."""
    return _fitting(_SIZES, max(sizes, default=0.0))


def duration_unit(durations: Iterable[float]) -> Unit:
    """Return the unit for a column of durations in seconds."""
    return _fitting(_DURATIONS, max(durations, default=0.0))


def size_text(size: float) -> str:
    """Return a size in bytes with its unit, such as "8.22 MB"."""
    unit = size_unit([size])
    return f"{unit.number(size)} {unit.name}"


def _fitting(units: tuple[Unit, ...], largest: float) -> Unit:
    return next((unit for unit in units if largest >= unit.size), units[-1])


_PARTS = {
    "parameters": "weights",
    "gradients": "grads",
    "optimizer": "optim",
    "gathered": "copies",
    "buffers": "buffers",
}
ASSUMPTIONS = (
    f"GPUs compute at {COMPUTE_EFFICIENCY:.0%} of their dense peak, links carry {LINK_EFFICIENCY:.0%} of their rate",
    f"{USABLE_MEMORY:.0%} of a GPU's memory is for what is counted; each part counts at its largest moment",
    "attention is a fused causal kernel; MFU counts it as if it were not causal, as PaLM and Megatron-LM do",
    "tp, cp, ep and pp traffic is waited for; dp traffic hides behind its passes, but not under a pipeline",
    "a pipeline schedule keeps gathered parameters and whole gradients through the step, at every ZeRO stage",
    "experts get equal shares of the tokens",
)


def render_plan(plan: Plan, cluster: Cluster, command: Sequence[str]) -> RenderableType:
    """Return all tables of one layout."""
    return Group(
        Text(_headline(plan), style="bold"),
        _zero_table(plan.config),
        _pipeline_table(plan),
        Text(_block_line(plan.config), style="dim"),
        _time_table(plan),
        _verdict(plan, cluster),
        *(_start("start it with this", command) if fits(plan.memory, cluster) else []),
        *_assumptions(),
    )


def render_search(search: Search, cluster: Cluster, command: Sequence[str]) -> RenderableType:
    """Return the best layouts, what was left out and why, and how to start the best."""
    config = search.best[0].config
    size = size_unit(plan.largest.total for plan in search.best)
    duration = duration_unit(plan.time.total_s for plan in search.best)
    axes = [axis for axis in ("dp", "tp", "pp", "cp", "ep") if axis not in ("cp", "ep") or _is_used(search, axis)]
    table = _table(*axes, "ZeRO", "schedule", "micro", "recompute", size.name, duration.name, "MFU")
    for plan in search.best:
        parallel = plan.config.parallel
        table.add_row(
            *(str(getattr(parallel, axis)) for axis in axes),
            str(parallel.zero),
            parallel.schedule.removesuffix("-1f1b") if parallel.pp > 1 else "-",
            str(parallel.microbatches),
            plan.config.memory.checkpointing,
            size.number(plan.largest.total),
            duration.number(plan.time.total_s),
            f"{plan.mfu:.0%}",
        )
    return Group(
        Text(f"{_model_line(config)} · {config.parallel.ranks} x {cluster.gpu.device_name}", style="bold"),
        table,
        Text(left_out(search, cluster)),
        *_start("start the first with this", command),
        *_assumptions(),
    )


def _is_used(search: Search, axis: str) -> bool:
    return any(getattr(plan.config.parallel, axis) > 1 for plan in search.best)


def _start(heading: str, command: Sequence[str]) -> list[Text]:
    places = places_to_set(command)
    heading = f"{heading}; {places}:" if places else f"{heading}:"
    return [Text(heading), Text(on_several_lines(command), style="green", no_wrap=True, overflow="ignore")]


def left_out(search: Search, cluster: Cluster) -> str:
    """Return one line: how many layouts fit, how many do not, and why."""
    usable = USABLE_MEMORY * cluster.gpu.memory_bytes
    line = f"{search.fitting} layouts fit; {search.too_large} need more than {size_text(usable)}"
    if search.too_large and search.smallest_bytes is not None:
        line += f" (the smallest of all needs {size_text(search.smallest_bytes)})"
    reasons = ", ".join(f"{key} {count}" for key, count in sorted(search.refused.items()))
    return line + (f"; the trainer refuses {sum(search.refused.values())}: {reasons}" if reasons else "")


def plan_as_json(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Return a plan as numbers in bytes, seconds and shares."""
    return {
        "parameters": parameter_count(plan.config.model),
        "parallel": plan.config.parallel.model_dump(),
        "memory": plan.config.memory.model_dump(),
        "fits": fits(plan.memory, cluster),
        "ranks": [_memory_as_json(rank) for rank in plan.memory],
        "largest_pp_index": plan.largest.pp_index,
        "zero": {str(zero): _memory_as_json(rank) for zero, rank in _by_zero_stage(plan.config).items()},
        "bubble_share": plan.bubble_share,
        "traffic": [asdict(traffic) for traffic in plan.traffic],
        "time": {**asdict(plan.time), "total_s": plan.time.total_s},
        "mfu": plan.mfu,
        "assumptions": ASSUMPTIONS,
    }


def search_as_json(search: Search, cluster: Cluster, command: Sequence[str]) -> dict[str, Any]:
    """Return what was found as plans, and counts of what was left out."""
    return {
        "best": [plan_as_json(plan, cluster) for plan in search.best],
        "command": on_one_line(command),
        "fitting": search.fitting,
        "too_large": search.too_large,
        "refused": dict(search.refused),
    }


def _memory_as_json(rank: PlannedMemory) -> dict[str, float]:
    parts = asdict(rank.state)
    return {"pp_index": rank.pp_index, **parts, "activations": rank.activations, "total": rank.total}


def _headline(plan: Plan) -> str:
    parallel = plan.config.parallel
    layout = f"dp {parallel.dp} x tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp}, ep {parallel.ep}"
    return f"{_model_line(plan.config)} · {layout}, ZeRO {parallel.zero}"


def _model_line(config: TrainerConfig) -> str:
    count = parameter_count(config.model)
    return f"{count / 1e9:.3g} billion parameters" if count >= 1e8 else f"{count:,} parameters"


def _by_zero_stage(config: TrainerConfig) -> dict[int, PlannedMemory]:
    places = pipeline_places(config)
    found = {}
    for zero in range(4):
        # ZeRO 0 has no shards to count.
        changes = {"zero": zero, "dp_shard": config.parallel.dp_shard if zero else 0}
        other = config.model_copy(update={"parallel": config.parallel.model_copy(update=changes)})
        found[zero] = largest(memory_plan(other, places))
    return found


def _zero_table(config: TrainerConfig) -> Table:
    """The ZeRO paper's column counts 16-bit weights and gradients, before activations."""
    stages = _by_zero_stage(config)
    parallel = config.parallel
    share = parameter_count(config.model) / (parallel.tp * parallel.pp)
    paper = {zero: zero_bytes(share, stage=zero, ranks=parallel.dp * parallel.cp) for zero in stages}
    unit = size_unit([*(rank.total for rank in stages.values()), *paper.values()])
    table = _table("ZeRO", *_PARTS.values(), "activ", f"all {unit.name}", "paper")
    for zero, rank in stages.items():
        style = "bold" if zero == parallel.zero else "dim"
        table.add_row(str(zero), *_memory_cells(rank, unit), unit.number(paper[zero]), style=style)
    return table


def _block_line(config: TrainerConfig) -> str:
    parallel, tokens = config.parallel, microbatch_tokens(config)
    kept = tokens * block_bytes_per_token(config)
    gpt = gpt_block_bytes(
        sequence=config.data.sequence,
        samples=tokens / config.data.sequence,
        dim=config.model.dim,
        heads=config.model.heads,
        tp=parallel.tp,
        sequence_parallel=parallel.sequence_parallel,
        recomputed="all" if config.memory.checkpointing == "full" else "scores",
    )
    return f"a block keeps {size_text(kept)} of each microbatch; GPT's, as Korthikanti et al. count, {size_text(gpt)}"


def _pipeline_table(plan: Plan) -> Table:
    unit = size_unit(rank.total for rank in plan.memory)
    table = _table("pp", *_PARTS.values(), "activ", f"all {unit.name}", "")
    for rank in plan.memory:
        mark = "largest" if rank is plan.largest and len(plan.memory) > 1 else ""
        table.add_row(str(rank.pp_index), *_memory_cells(rank, unit), mark)
    return table


def _memory_cells(rank: PlannedMemory, unit: Unit) -> list[str]:
    parts = asdict(rank.state)
    return [*(unit.number(parts[part]) for part in _PARTS), unit.number(rank.activations), unit.number(rank.total)]


def _time_table(plan: Plan) -> Table:
    size = size_unit(traffic.sent_bytes for traffic in plan.traffic)
    duration = duration_unit([plan.time.total_s])
    table = _table("a rank's step", f"{size.name} sent", duration.name)
    for traffic in plan.traffic:
        cells = size.number(traffic.sent_bytes), duration.number(traffic.duration_s)
        table.add_row(f"{traffic.kind} (links busy)", *cells, style="dim")
    time = plan.time
    for name, duration_s in (
        ("computation", time.compute_s),
        ("waiting for links", time.communication_s),
        (f"bubble, {plan.bubble_share:.1%} idle", time.bubble_s),
        ("optimizer", time.optimizer_s),
    ):
        table.add_row(name, "", duration.number(duration_s))
    table.add_row("step", "", duration.number(time.total_s), style="bold")
    return table


def _verdict(plan: Plan, cluster: Cluster) -> Text:
    usable = USABLE_MEMORY * cluster.gpu.memory_bytes
    who = f"pipeline rank {plan.largest.pp_index}" if plan.config.parallel.pp > 1 else "each rank"
    needed = f"{who} needs {size_text(plan.largest.total)} of {size_text(usable)}"
    if fits(plan.memory, cluster):
        return Text(f"fits: {needed}; MFU about {plan.mfu:.0%}", style="bold green")
    return Text(f"does not fit: {needed}", style="bold red")


def _assumptions() -> list[RenderableType]:
    lines = (Padding(Text(line, style="dim"), (0, 0, 0, 2), expand=False) for line in ASSUMPTIONS)
    return [Text("assumed:", style="dim"), *lines]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right")
    return table
