"""The tables of one planned layout: memory by ZeRO stage and by place in the pipeline, and the time of a step."""

from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast_cli.plans.start_command import on_several_lines, places_to_set
from holdfast_cli.plans.unit_text import duration_text, size_text
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.activations import block_bytes_per_token, microbatch_tokens
from holdfast_trainer.planning.collectives import LINK_EFFICIENCY
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
from holdfast_trainer.planning.step_time import COMPUTE_EFFICIENCY
from holdfast_trainer.planning.textbook import gpt_block_bytes, zero_bytes
from holdfast_trainer.planning.whole_run import Failures, WholeRun

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
    "GPUs fail by chance and independently; a failure costs half an interval of checkpoints and a restart",
)


def render_plan(
    plan: Plan, cluster: Cluster, command: Sequence[str], *, costs: Failures, run: WholeRun | None, refusal: str
) -> list[RenderableType]:
    """Return what there is to say of one layout. ``refusal``: why the trainer does not start it; "": it does."""
    starts = fits(plan.memory, cluster) and not refusal
    return [
        Text(_headline(plan), style="bold"),
        _zero_table(plan.config),
        _pipeline_table(plan),
        Text(_block_line(plan.config), style="dim"),
        _time_table(plan),
        *whole_run_lines(plan, costs, run),
        _verdict(plan, cluster),
        *([Text(f"the trainer refuses this layout: {refusal}", style="bold red")] if refusal else []),
        *(start_lines("start it with this", command) if starts else []),
    ]


def whole_run_lines(plan: Plan, costs: Failures, run: WholeRun | None) -> list[RenderableType]:
    """Return time and price of a run, if it is to be planned, and what failures cost."""
    return [*([Text(_run_line(plan, run))] if run is not None else []), Text(_failures_line(costs))]


def start_lines(heading: str, command: Sequence[str]) -> list[RenderableType]:
    """Return the command that starts a layout, below a heading that says what to set before."""
    places = places_to_set(command)
    heading = f"{heading}; {places}:" if places else f"{heading}:"
    return [Text(heading), Text(on_several_lines(command), style="green", no_wrap=True, overflow="ignore")]


def assumption_lines() -> list[RenderableType]:
    """Return what every plan assumes."""
    lines = (Padding(Text(line, style="dim"), (0, 0, 0, 2), expand=False) for line in ASSUMPTIONS)
    return [Text("assumed:", style="dim"), *lines]


def model_text(config: TrainerConfig) -> str:
    """Return the size of a model."""
    count = parameter_count(config.model)
    return f"{count / 1e9:.3g} billion parameters" if count >= 1e8 else f"{count:,} parameters"


def plain_table(*columns: str) -> Table:
    """Return an empty table of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right")
    return table


def by_zero_stage(config: TrainerConfig) -> dict[int, PlannedMemory]:
    """Return the memory of the largest rank at each ZeRO stage."""
    places = pipeline_places(config)
    found = {}
    for zero in range(4):
        # ZeRO 0 has no shards to count.
        changes = {"zero": zero, "dp_shard": config.parallel.dp_shard if zero else 0}
        other = config.model_copy(update={"parallel": config.parallel.model_copy(update=changes)})
        found[zero] = largest(memory_plan(other, places))
    return found


def _headline(plan: Plan) -> str:
    parallel = plan.config.parallel
    layout = f"dp {parallel.dp} x tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp}, ep {parallel.ep}"
    return f"{model_text(plan.config)} · {layout}, ZeRO {parallel.zero}"


def _zero_table(config: TrainerConfig) -> Table:
    """The ZeRO paper's column counts 16-bit weights and gradients, before activations."""
    parallel = config.parallel
    share = parameter_count(config.model) / (parallel.tp * parallel.pp)
    table = plain_table("ZeRO", *_PARTS.values(), "activ", "all", "paper")
    for zero, rank in by_zero_stage(config).items():
        paper = zero_bytes(share, stage=zero, ranks=parallel.dp * parallel.cp)
        style = "bold" if zero == parallel.zero else "dim"
        table.add_row(str(zero), *_memory_cells(rank), size_text(paper), style=style)
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
    table = plain_table("pp", *_PARTS.values(), "activ", "all", "")
    for rank in plan.memory:
        mark = "largest" if rank is plan.largest and len(plan.memory) > 1 else ""
        table.add_row(str(rank.pp_index), *_memory_cells(rank), mark)
    return table


def _memory_cells(rank: PlannedMemory) -> list[str]:
    parts = asdict(rank.state)
    return [*(size_text(parts[part]) for part in _PARTS), size_text(rank.activations), size_text(rank.total)]


def _time_table(plan: Plan) -> Table:
    table = plain_table("a rank's step", "calls", "sent", "time")
    for traffic in plan.traffic:
        calls = f"{traffic.calls:,.0f}", size_text(traffic.sent_bytes), duration_text(traffic.duration_s)
        table.add_row(f"{traffic.kind} (links busy)", *calls, style="dim")
    time = plan.time
    for name, duration_s in (
        ("computation", time.compute_s),
        ("waiting for links", time.communication_s),
        (f"bubble, {plan.bubble_share:.1%} idle", time.bubble_s),
        ("optimizer", time.optimizer_s),
        *([("copies to and from the host", time.offload_s)] if plan.config.memory.offload != "none" else []),
    ):
        table.add_row(name, "", "", duration_text(duration_s))
    table.add_row("step", "", "", duration_text(time.total_s), style="bold")
    return table


def _run_line(plan: Plan, run: WholeRun) -> str:
    gpus = plan.config.parallel.ranks
    price = f", at a price of {run.price:,.0f}" if run.price else ""
    what = f"{run.tokens:.3g} tokens are {run.operations:.3g} operations"
    if run.duration_s is None:
        return f"{what}: the run never ends, because it fails before it has restarted"
    return f"{what}: {duration_text(run.duration_s)} on {gpus:,} GPUs, failures included{price}"


def _failures_line(costs: Failures) -> str:
    best = f"by Daly; by Young {duration_text(costs.young_s)}"
    if costs.interval_s > costs.daly_s:
        best = f"a step; by Daly {duration_text(costs.daly_s)}"
    every = f"{duration_text(costs.interval_s)} ({best})"
    saved = f"a checkpoint stops training for {duration_text(costs.checkpoint_s)}, best every {every}"
    return f"failures: one in {duration_text(costs.mtbf_s)}; {saved}: goodput {costs.goodput:.1%}"


def _verdict(plan: Plan, cluster: Cluster) -> Text:
    usable = USABLE_MEMORY * cluster.gpu.memory_bytes
    who = f"pipeline rank {plan.largest.pp_index}" if plan.config.parallel.pp > 1 else "each rank"
    needed = f"{who} needs {size_text(plan.largest.total)} of {size_text(usable)}"
    if fits(plan.memory, cluster):
        return Text(f"fits: {needed}; MFU about {plan.mfu:.0%}", style="bold green")
    return Text(f"does not fit: {needed}", style="bold red")
