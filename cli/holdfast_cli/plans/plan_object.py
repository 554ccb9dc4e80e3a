"""A plan as one object for scripts: bytes, seconds and shares."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast_cli.plans.layout_tables import ASSUMPTIONS, by_zero_stage
from holdfast_cli.plans.start_command import on_one_line
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import parameter_count
from holdfast_trainer.planning.plan import Plan, PlannedMemory, fits
from holdfast_trainer.planning.search import Search, value_of
from holdfast_trainer.planning.whole_run import Failures, WholeRun


def plan_as_object(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Return what one layout needs and costs."""
    return {
        "parameters": parameter_count(plan.config.model),
        "parallel": plan.config.parallel.model_dump(),
        "memory": plan.config.memory.model_dump(),
        "fits": fits(plan.memory, cluster),
        "ranks": [_memory(rank) for rank in plan.memory],
        "largest_pp_index": plan.largest.pp_index,
        "zero": {str(zero): _memory(rank) for zero, rank in by_zero_stage(plan.config).items()},
        "bubble_share": plan.bubble_share,
        "traffic": [asdict(traffic) for traffic in plan.traffic],
        "time": {**asdict(plan.time), "total_s": plan.time.total_s},
        "mfu": plan.mfu,
        "assumptions": ASSUMPTIONS,
    }


def costs_as_object(
    costs: Failures, run: WholeRun | None, details: Mapping[str, Sequence[Any]], *, refusal: str, nearest: str
) -> dict[str, Any]:
    """Return what a whole run of one layout costs, and all that --explain shows. ``details``: lists of dataclasses."""
    return {
        "failures": asdict(costs),
        "run": None if run is None else asdict(run),
        **{name: [asdict(one) for one in rows] for name, rows in details.items()},
        "refusal": refusal,
        "nearest": nearest,
    }


def search_as_object(search: Search, cluster: Cluster, command: Sequence[str]) -> dict[str, Any]:
    """Return what was found as plans, and counts of what was left out."""
    return {
        "best": [plan_as_object(plan, cluster) for plan in search.best],
        "command": on_one_line(command),
        "fitting": search.fitting,
        "too_large": search.too_large,
        "refused": dict(search.refused),
        "smallest_bytes": search.smallest_bytes,
        "choices": [
            {
                "setting": choice.setting,
                "value": choice.value,
                "next_value": None if choice.other is None else value_of(choice.other.config, choice.setting),
                "given": choice.is_given,
                "next_step_s": None if choice.other is None else choice.other.time.total_s,
            }
            for choice in search.choices
        ],
    }


def _memory(rank: PlannedMemory) -> dict[str, float]:
    parts = asdict(rank.state)
    return {"pp_index": rank.pp_index, **parts, "activations": rank.activations, "total": rank.total}
