"""A job's measured numbers next to the plan of its layout, and what their differences say."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast_cli.errors import CommandError
from holdfast_cli.plans.layout_tables import plain_table
from holdfast_cli.plans.unit_text import value_text
from holdfast_cli.reports.run_facts import RunFacts
from holdfast_cli.trainer_command import trainer_flags
from holdfast_trainer.planning.plan import Plan

_ALIKE = 0.1
"""Difference, as a share of the plan, up to which it needs no explanation."""
_NOTHING = 0.005
"""Difference of two bubbles that needs none either, as one of them may be 0."""


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a plan, and the same of the run."""

    name: str
    """``memory`` of the largest rank, ``step`` and ``MFU`` (medians), or ``bubble``."""
    unit: str
    planned: float
    measured: float | None
    """None: the run has not reported it."""
    reading: str
    """What the difference says."""


def flags_of_run(facts: RunFacts) -> Sequence[str]:
    """Return the trainer's flags with which a run was started. Raises CommandError if it is another trainer's."""
    command = [str(word) for word in facts.spec.get("command") or ()]
    flags = trainer_flags(command)
    if flags is None:
        raise CommandError(
            f"run {facts.name} was not started with -m holdfast_trainer, so its layout is not known: add it, as in "
            f"`holdfast plan compare {facts.name} --model 7b --parallel.dp 8`"
        )
    return flags


def compare_numbers(plan: Plan, facts: RunFacts) -> list[ComparedNumber]:
    """Return memory, step time, MFU and bubble of a plan and of a run."""
    status, is_on_cpu = facts.status, _is_on_cpu(facts)
    (step_s,) = facts.quantiles("step_s", (0.5,))
    (mfu,) = facts.quantiles("mfu", (0.5,))
    memory = max((int(rank.get("memory_bytes", 0)) for rank in status.get("ranks", ())), default=0)
    bubble = status.get("pipeline_bubble")
    if not memory and step_s is None and mfu is None and bubble is None:
        raise CommandError(f"run {facts.name} has reported neither memory nor a step: there is nothing to compare")
    numbers = (
        ("memory", "bytes", plan.largest.total, float(memory) or None),
        ("step", "s", plan.time.total_s, step_s),
        ("MFU", "share", plan.mfu, mfu),
        ("bubble", "share", plan.bubble_share, bubble),
    )
    return [
        ComparedNumber(name, unit, planned, measured, _reading(name, planned, measured, is_on_cpu=is_on_cpu))
        for name, unit, planned, measured in numbers
    ]


def _is_on_cpu(facts: RunFacts) -> bool:
    ranks = facts.status.get("ranks", ())
    return bool(ranks) and all(rank.get("own_time_source") == "host" for rank in ranks)


_READINGS = {
    ("memory", True): "more: attention that keeps its scores, further tensors of the script, or fragments",
    ("memory", False): "less: the plan adds up parts that are largest at different moments",
    ("step", True): "slower: see MFU and bubble, then `holdfast report` for data, checkpoints and slow ranks",
    ("MFU", False): "lower: kernels or links reach less than the plan assumes (hardware.peak_tflops, --link-gbps)",
    ("bubble", True): "longer: stages are uneven, or wait for links or data",
}
"""Number, and whether the run has more of it than the plan -> what that says."""


def _reading(number: str, planned: float, measured: float | None, *, is_on_cpu: bool) -> str:
    if measured is None:
        return "the run has not reported it"
    if is_on_cpu and number != "bubble":
        return "the ranks are on CPU: this is the whole process" if number == "memory" else "the plan is for a GPU"
    if abs(measured - planned) <= max(_ALIKE * planned, _NOTHING if number == "bubble" else 0.0):
        return "as planned"
    return _READINGS.get((number, measured > planned), "better than the plan assumes")


def render_comparison(plan: Plan, rows: Sequence[ComparedNumber], facts: RunFacts) -> RenderableType:
    """Return the table, and the readings below it."""
    table = plain_table("", "planned", "measured", "difference")
    for row in rows:
        measured = "-" if row.measured is None else value_text(row.measured, row.unit)
        table.add_row(row.name, value_text(row.planned, row.unit), measured, _difference(row))
    parallel = plan.config.parallel
    layout = f"dp {parallel.dp} x tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp}, ZeRO {parallel.zero}"
    return Group(Text(f"run {facts.name} next to the plan of {layout}", style="bold"), table, *_readings(rows))


def _difference(row: ComparedNumber) -> str:
    if row.measured is None:
        return "-"
    if row.unit == "share":
        return f"{100 * (row.measured - row.planned):+.1f} points"
    return f"{row.measured / row.planned - 1:+.1%}" if row.planned else "-"


def _readings(rows: Sequence[ComparedNumber]) -> Iterator[RenderableType]:
    for row in rows:
        yield Padding(Text(f"{row.name}: {row.reading}"), (0, 0, 0, 2), expand=False)


def comparison_as_object(rows: Sequence[ComparedNumber]) -> dict[str, Any]:
    """Return the numbers by name."""
    return {"numbers": [asdict(row) for row in rows]}
