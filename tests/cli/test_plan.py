import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast_cli.main import app

DEMO = Path(__file__).parents[2] / "trainer/holdfast_trainer/configs/demo.toml"


def plan(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ("plan", *arguments))


def test_a_layout_is_planned_from_a_file_and_flags() -> None:
    result = plan("--config", str(DEMO), "--parallel.zero", "1", "--json")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout.splitlines()[-1])
    assert (printed["parallel"]["tp"], printed["parallel"]["zero"], printed["fits"]) == (2, 1, True)
    assert [rank["pp_index"] for rank in printed["ranks"]] == [0, 1]
    assert printed["bubble_share"] == pytest.approx(1 / 3)
    assert {traffic["kind"] for traffic in printed["traffic"]} == {"dp all-gather", "dp reduce-scatter", "tp", "pp"}
    assert printed["zero"]["1"]["total"] == max(rank["total"] for rank in printed["ranks"])


def test_a_plan_names_the_largest_rank_and_says_what_it_assumes() -> None:
    output = plan("--model", "7b", "--parallel.dp", "4", "--parallel.pp", "2", "--parallel.microbatches", "8").stdout
    assert "largest" in output
    assert "assumed:" in output
    assert "11.1% idle" in output


def test_a_search_prints_the_best_layouts_and_a_command_that_has_them() -> None:
    result = plan("--model", "13b", "--gpus", "16", "--gpu", "a100", "--json")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout)
    times = [found["time"]["total_s"] for found in printed["best"]]
    assert times == sorted(times)
    assert f"--parallel.dp {printed['best'][0]['parallel']['dp']} " in printed["command"]
    text = plan("--model", "13b", "--gpus", "16", "--gpu", "a100").stdout
    assert "layouts fit" in text
    assert "start the first with" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "9b"), "--model 9b"),
        (("--gpu", "abacus"), "--gpu abacus"),
        (("--config", "/no/such/file"), "--config /no/such/file"),
        (("--model", "7b", "--gpu", "v100"), "change --gpu or [precision]"),
        (("--model", "7b", "--parallel.nope", "3"), "--parallel.nope"),
        (("--model", "175b", "--gpus", "8"), "no layout of --gpus 8 will do"),
    ],
)
def test_errors_are_one_line_that_names_the_option(arguments: tuple[str, ...], message: str) -> None:
    result = plan(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
