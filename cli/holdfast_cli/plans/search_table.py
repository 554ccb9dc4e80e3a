"""The layouts that a search has found, and why the best is as it is."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast_cli.plans.layout_tables import model_text, plain_table, start_lines
from holdfast_cli.plans.unit_text import duration_text, size_text
from holdfast_core.texts.incident_lines import number_of
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.plan import USABLE_MEMORY, Plan
from holdfast_trainer.planning.search import Choice, Search, value_of


def render_search(search: Search, cluster: Cluster, command: Sequence[str]) -> list[RenderableType]:
    """Return the best layouts, what was left out and why, and how to start the best."""
    config = search.best[0].config
    axes = [axis for axis in ("dp", "tp", "pp", "cp", "ep") if axis not in ("cp", "ep") or _is_used(search, axis)]
    table = plain_table(*axes, "ZeRO", "schedule", "micro", "recompute", "memory", "step", "MFU")
    for plan in search.best:
        parallel = plan.config.parallel
        table.add_row(
            *(str(getattr(parallel, axis)) for axis in axes),
            str(parallel.zero),
            parallel.schedule.removesuffix("-1f1b") if parallel.pp > 1 else "-",
            str(parallel.microbatches),
            plan.config.memory.checkpointing,
            size_text(plan.largest.total),
            duration_text(plan.time.total_s),
            f"{plan.mfu:.0%}",
        )
    return [
        Text(f"{model_text(config)} · {config.parallel.ranks} x {cluster.gpu.device_name}", style="bold"),
        table,
        Text(left_out(search, cluster)),
        Text("why the first, and what the next best of each choice costs:", style="bold"),
        *(Padding(Text(line), (0, 0, 0, 2), expand=False) for line in reasons(search, cluster)),
        *start_lines("start the first with this", command),
    ]


def reasons(search: Search, cluster: Cluster) -> Iterator[str]:
    """Yield what each choice of the first layout gains, and how much slower the best layout without it is."""
    best = search.best[0]
    for choice in search.choices:
        if choice.setting == "ep" and not best.config.model.experts:
            continue
        begun = f"{choice.setting} {choice.value}: {_gain(choice, best, cluster)}"
        if choice.other is None:
            why = "given" if choice.is_given else "nothing else fits" if choice.alternatives else "no other is searched"
            yield f"{begun}; {why}"
            continue
        slower = choice.other.time.total_s / best.time.total_s - 1
        value = value_of(choice.other.config, choice.setting)
        cost = f"{slower:.1%} slower" if slower >= 0.0005 else "as fast"
        needs = size_text(choice.other.largest.total)
        yield f"{begun}; best with {value}: {cost}, {needs}"


def _gain(choice: Choice, best: Plan, cluster: Cluster) -> str:  # noqa: PLR0911 - one sentence for each choice
    config, parallel = best.config, best.config.parallel
    sent = {traffic.kind: traffic for traffic in best.traffic}
    match choice.setting:
        case "tp" if parallel.tp > 1:
            links = f"within nodes, over links of {cluster.gpu.node_gbps:,.0f} Gbit/s"
            if parallel.tp > cluster.gpus_per_node:
                links = f"also between nodes, over a network of {cluster.gpu.network_gbps:,.0f} Gbit/s for each GPU"
            return f"cuts each block, and sends {size_text(sent['tp'].sent_bytes)} a step {links}"
        case "pp" if parallel.pp > 1:
            return f"cuts the layers, and sends {size_text(sent['pp'].sent_bytes)}; {best.bubble_share:.1%} idle"
        case "cp" if parallel.cp > 1:
            return f"cuts samples of {config.data.sequence:,} tokens, and sends {size_text(sent['cp'].sent_bytes)}"
        case "dp" if parallel.dp > 1:
            samples = config.train.global_batch // parallel.dp
            exchanged = sum(one.sent_bytes for kind, one in sent.items() if kind.startswith("dp"))
            return f"{number_of(samples, 'sample')} a step for each replica, which sends {size_text(exchanged)}"
        case "ep" if parallel.ep > 1:
            return f"spreads {config.model.experts} experts, and sends {size_text(sent['ep'].sent_bytes)}"
        case "microbatches":
            each = config.train.global_batch // (parallel.dp * parallel.microbatches)
            return f"{number_of(each, 'sample')} in each"
        case "tp" | "pp" | "cp" | "ep" | "dp":
            return "no part is cut there, so that nothing is sent for it"
        case "zero":
            state = best.largest.state
            kept = state.parameters + state.gradients + state.optimizer + state.gathered
            return f"state takes {size_text(kept)} of a GPU"
        case "schedule":
            return f"{best.bubble_share:.1%} idle"
    return f"activations take {size_text(best.largest.activations)}"


def _is_used(search: Search, axis: str) -> bool:
    return any(getattr(plan.config.parallel, axis) > 1 for plan in search.best)


def left_out(search: Search, cluster: Cluster) -> str:
    """Return one line: how many layouts fit, how many do not, and why."""
    usable = USABLE_MEMORY * cluster.gpu.memory_bytes
    line = f"{search.fitting} layouts fit; {search.too_large} need more than {size_text(usable)}"
    if search.too_large and search.smallest_bytes is not None:
        line += f"; none needs less than {size_text(search.smallest_bytes)}"
    reasons = ", ".join(f"{key} {count}" for key, count in sorted(search.refused.items()))
    return line + (f"; the trainer refuses {sum(search.refused.values())}: {reasons}" if reasons else "")
