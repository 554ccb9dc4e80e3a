"""``holdfast plan compare``: what a run has measured, next to the plan of its layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.errors import CommandError
from holdfast_cli.plans.run_comparison import compare_numbers
from holdfast_cli.reports.run_facts import RunFacts, RunSource
from holdfast_trainer.config_sections import HardwareConfig
from holdfast_trainer.planning.hardware import GPUS, Cluster
from holdfast_trainer.planning.plan import Plan, make_plan, pipeline_places
from holdfast_trainer.planning.settings import load_layout
from tests.cli.conftest import holdfast


class MeasuredRun(RunFacts):
    """A run whose history has these medians."""

    def quantiles(self, quantity: str, ratios: Any) -> list[float | None]:
        return [self.spec["medians"].get(quantity) for _ in ratios]


def run(medians: dict[str, float], *, source: str = "events", **status: Any) -> RunFacts:
    ranks = [{"memory_bytes": 30e9, "own_time_source": source}, {"memory_bytes": 25e9, "own_time_source": source}]
    return MeasuredRun(
        source=RunSource("r", Path(), None),
        history=None,
        instance="",
        created_unix_s=0.0,
        spec={"medians": medians},
        status={"ranks": ranks} | status,
        status_unix_s=0.0,
        incidents=(),
        checkpoints=(),
        is_live=False,
        gaps=[],
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    layout = ("--parallel.dp", "4", "--parallel.pp", "2", "--parallel.microbatches", "64")
    config, _ = load_layout(None, "7b", (*layout, "--memory.checkpointing", "full"))
    return make_plan(config, Cluster.of(GPUS["h100"], HardwareConfig()), pipeline_places(config))


def test_each_number_is_next_to_the_plan_with_what_the_difference_says(plan: Plan) -> None:
    step_s = 2 * plan.time.total_s
    rows = compare_numbers(plan, run({"step_s": step_s, "mfu": plan.mfu / 2}, pipeline_bubble=plan.bubble_share))
    assert [(row.name, row.planned, row.measured) for row in rows] == [
        ("memory", plan.largest.total, 30e9),
        ("step", plan.time.total_s, step_s),
        ("MFU", plan.mfu, plan.mfu / 2),
        ("bubble", plan.bubble_share, plan.bubble_share),
    ]
    assert [row.reading.partition(":")[0] for row in rows] == ["less", "slower", "lower", "as planned"]


def test_a_short_step_that_takes_twice_its_plan_is_not_as_planned() -> None:
    config, _ = load_layout(None, None, [])
    tiny = make_plan(config, Cluster.of(GPUS["h100"], HardwareConfig()), pipeline_places(config))
    rows = {
        row.name: row for row in compare_numbers(tiny, run({"step_s": 2 * tiny.time.total_s}, pipeline_bubble=0.004))
    }
    assert tiny.time.total_s < 0.001
    assert rows["step"].reading.startswith("slower")
    assert rows["bubble"].reading == "as planned"


def test_what_a_run_has_not_reported_is_said_to_be_missing(plan: Plan) -> None:
    rows = compare_numbers(plan, run({}))
    assert [row.reading for row in rows[1:]] == ["the run has not reported it"] * 3
    with pytest.raises(CommandError, match="run r has reported neither memory nor a step"):
        compare_numbers(plan, run({}, ranks=[]))


def test_ranks_on_cpu_are_not_judged_by_the_plan_of_a_gpu(plan: Plan) -> None:
    rows = compare_numbers(plan, run({"step_s": 1.0}, source="host", pipeline_bubble=0.5))
    assert [row.reading.partition(":")[0] for row in rows] == [
        "the ranks are on CPU", "the plan is for a GPU", "the run has not reported it", "longer",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "takes the name or the folder of one run"),
        (("one", "two"), "takes the name or the folder of one run"),
        (("nope",), "no run nope under"),
    ],
)
def test_a_run_that_cannot_be_compared_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = holdfast("plan", "compare", *arguments, "--directory", str(tmp_path))
    assert result.exit_code != 0
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.system
def test_a_run_of_our_trainer_is_compared_with_the_layout_that_it_was_started_with(tmp_path: Path) -> None:
    trainer = ("-m", "holdfast_trainer", "--parallel.pp", "2", "--parallel.microbatches", "4", "--train.steps", "5")
    ours = ("--run", "planned", "--directory", tmp_path, "--checkpoints", tmp_path / "kept")
    started = holdfast("run", "--ranks", "2", *ours, "--", "python", *trainer)
    assert started.exit_code == 0, started.output
    result = holdfast("plan", "compare", "planned", "--directory", tmp_path, "--json")
    numbers = {row["name"]: row for row in json.loads(result.stdout)["numbers"]}
    assert numbers["bubble"]["planned"] == pytest.approx(1 / 5)
    assert 0.0 < numbers["bubble"]["measured"] < 1.0
    assert numbers["step"]["measured"] > 0.0
