"""Tables of a plan or a search for people, and the same as JSON."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.activations import block_bytes_per_token, microbatch_tokens
from holdfast_trainer.planning.communication import LINK_EFFICIENCY
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import parameter_count
from holdfast_trainer.planning.plan import (
    USABLE_MEMORY,
    Plan,
    RankMemory,
    fits,
    largest,
    memory_plan,
    pipeline_places,
)
from holdfast_trainer.planning.search import Search
from holdfast_trainer.planning.step_time import COMPUTE_EFFICIENCY
from holdfast_trainer.planning.textbook import gpt_block_bytes, zero_bytes

_GB = 1e9
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


def render_plan(plan: Plan, cluster: Cluster) -> RenderableType:
    """Return all tables of one layout."""
    return Group(
        Text(_headline(plan), style="bold"),
        _zero_table(plan.config),
        _pipeline_table(plan),
        Text(_block_line(plan.config), style="dim"),
        _time_table(plan),
        _verdict(plan, cluster),
        *_assumptions(),
    )


def render_search(search: Search, cluster: Cluster) -> RenderableType:
    """Return the best layouts, what was left out and why, and how to start the best."""
    config = search.best[0].config
    table = _table("dp", "tp", "pp", "cp", "ep", "ZeRO", "schedule", "micro", "recompute", "GB", "s", "MFU")
    for plan in search.best:
        parallel = plan.config.parallel
        table.add_row(
            *(str(size) for size in (parallel.dp, parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.zero)),
            parallel.schedule if parallel.pp > 1 else "-",
            str(parallel.microbatches),
            plan.config.memory.checkpointing,
            _gb(plan.largest.total),
            f"{plan.time.total_s:.3g}",
            f"{plan.mfu:.0%}",
        )
    return Group(
        Text(f"{_model_line(config)} · {config.parallel.ranks} x {cluster.gpu.device_name}", style="bold"),
        table,
        Text(left_out(search, cluster)),
        Text(f"start the first with: {suggested_command(search.best[0])}", style="green"),
        *_assumptions(),
    )


def left_out(search: Search, cluster: Cluster) -> str:
    """Return one line: how many layouts fit, how many do not, and why."""
    usable = USABLE_MEMORY * cluster.gpu.memory_bytes
    line = f"{search.fitting} layouts fit; {search.too_large} need more than {_gb(usable)} GB"
    if search.too_large and search.smallest_bytes is not None:
        line += f" (the smallest of all needs {_gb(search.smallest_bytes)} GB)"
    reasons = ", ".join(f"{key} {count}" for key, count in sorted(search.refused.items()))
    return line + (f"; the trainer refuses {sum(search.refused.values())}: {reasons}" if reasons else "")


def suggested_command(plan: Plan) -> str:
    """Return the flags of the layout behind the command that every rank runs."""
    parallel = plan.config.parallel
    keys = ("dp", "tp", "pp", "cp", "ep", "zero", "microbatches")
    flags = [f"--parallel.{key} {getattr(parallel, key)}" for key in keys]
    if parallel.pp > 1:
        flags.append(f"--parallel.schedule {parallel.schedule}")
    flags.append(f"--memory.checkpointing {plan.config.memory.checkpointing}")
    return f"python -m holdfast_trainer --config FILE {' '.join(flags)}"


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


def search_as_json(search: Search, cluster: Cluster) -> dict[str, Any]:
    """Return what was found as plans, and counts of what was left out."""
    return {
        "best": [plan_as_json(plan, cluster) for plan in search.best],
        "command": suggested_command(search.best[0]),
        "fitting": search.fitting,
        "too_large": search.too_large,
        "refused": dict(search.refused),
    }


def _memory_as_json(rank: RankMemory) -> dict[str, float]:
    parts = asdict(rank.state)
    return {"pp_index": rank.pp_index, **parts, "activations": rank.activations, "total": rank.total}


def _headline(plan: Plan) -> str:
    parallel = plan.config.parallel
    layout = f"dp {parallel.dp} x tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp}, ep {parallel.ep}"
    return f"{_model_line(plan.config)} · {layout}, ZeRO {parallel.zero}"


def _model_line(config: TrainerConfig) -> str:
    count = parameter_count(config.model)
    return f"{count / 1e9:.3g} billion parameters" if count >= 1e8 else f"{count:,} parameters"


def _by_zero_stage(config: TrainerConfig) -> dict[int, RankMemory]:
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
    table = _table("ZeRO", *_PARTS.values(), "activ", "all GB", "paper")
    parallel = config.parallel
    share = parameter_count(config.model) / (parallel.tp * parallel.pp)
    for zero, rank in _by_zero_stage(config).items():
        paper = zero_bytes(share, stage=zero, ranks=parallel.dp * parallel.cp)
        style = "bold" if zero == parallel.zero else "dim"
        table.add_row(str(zero), *_memory_cells(rank), _gb(paper), style=style)
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
    return f"a block keeps {_gb(kept)} GB of each microbatch; GPT's, as Korthikanti et al. count, {_gb(gpt)} GB"


def _pipeline_table(plan: Plan) -> Table:
    table = _table("pp", *_PARTS.values(), "activ", "all GB", "")
    for rank in plan.memory:
        mark = "largest" if rank is plan.largest else ""
        table.add_row(str(rank.pp_index), *_memory_cells(rank), mark)
    return table


def _memory_cells(rank: RankMemory) -> list[str]:
    parts = asdict(rank.state)
    return [*(_gb(parts[part]) for part in _PARTS), _gb(rank.activations), _gb(rank.total)]


def _time_table(plan: Plan) -> Table:
    table = _table("a rank's step", "GB sent", "s")
    for traffic in plan.traffic:
        table.add_row(f"{traffic.kind} (links busy)", _gb(traffic.sent_bytes), f"{traffic.duration_s:.3g}", style="dim")
    time = plan.time
    for name, duration_s in (
        ("computation", time.compute_s),
        ("waiting for links", time.communication_s),
        (f"bubble, {plan.bubble_share:.1%} idle", time.bubble_s),
        ("optimizer", time.optimizer_s),
    ):
        table.add_row(name, "", f"{duration_s:.3g}")
    table.add_row("step", "", f"{time.total_s:.3g}", style="bold")
    return table


def _verdict(plan: Plan, cluster: Cluster) -> Text:
    usable = USABLE_MEMORY * cluster.gpu.memory_bytes
    needed = f"pipeline rank {plan.largest.pp_index} needs {_gb(plan.largest.total)} of {_gb(usable)} GB"
    if fits(plan.memory, cluster):
        return Text(f"fits: {needed}; MFU about {plan.mfu:.0%}", style="bold green")
    return Text(f"does not fit: {needed}", style="bold red")


def _assumptions() -> list[Text]:
    return [Text("assumed:", style="dim"), *(Text(f"  {line}", style="dim") for line in ASSUMPTIONS)]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _gb(size: float) -> str:
    return f"{size / _GB:.3g}" if size >= _GB / 1000 else f"{size / _GB:.1g}"
