"""``holdfast compare``: the numbers of two runs, what differs, and checks that fail."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast_cli.errors import UsageError
from holdfast_cli.main import app
from holdfast_cli.reports.regressions import DEFAULT_CHECKS, parse_checks
from holdfast_proto.exit_codes import ExitCode
from tests.support.histories import counted
from tests.support.report_runs import TIME_USE_S, healthy_steps, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with a run "good" and a run "bad": shorter, slower, with a higher loss and less goodput."""
    write_run(tmp_path, healthy_steps(100), run="good", time_use_s=TIME_USE_S, checkpoint_every=10)
    slower = {**TIME_USE_S, "restart": 30.0}
    steps = healthy_steps(60, loss=8.0, step_s=1.0)
    command = ["python", "train.py", "--lr", "1e-2", "--token", "abc"]
    return write_run(tmp_path, steps, run="bad", time_use_s=slower, checkpoint_every=20, command=command)


def compare(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments, "--directory", str(folder)], catch_exceptions=False)


def compared(folder: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compare(folder, *arguments, "--json").output)
    return found


def test_losses_are_compared_at_the_last_step_that_both_have(folder: Path) -> None:
    found = compared(folder, "good", "bad")
    figures = found["figures"]
    assert found["common_step"] == 59
    assert figures["loss"]["a"] != figures["final_loss"]["a"]
    assert figures["loss"]["b"] == figures["final_loss"]["b"]
    at_59 = [4.0 / (1.0 + step / 20.0) + 0.1 * (step % 3) for step in range(40, 60)]
    assert figures["loss"]["a"] == pytest.approx(sum(at_59) / 20)
    assert figures["best_loss"]["a"] == pytest.approx(4.0 / (1.0 + 99 / 20.0))


def test_speed_goodput_and_checkpoints_are_compared(folder: Path) -> None:
    found = compared(folder, "good", "bad")
    figures = found["figures"]
    assert (figures["step_s"]["a"], figures["step_p95_s"]["a"]) == (0.501, 0.503)
    assert figures["goodput"] == {"a": 0.8, "b": pytest.approx(80 / 120), "change_ratio": pytest.approx(-1 / 6)}
    assert (figures["checkpoints"]["a"], figures["checkpoint_bytes"]["a"]) == (2.0, 1000.0)
    assert list(found["time_use_s"]) == ["productive", "restart", "start_up", "checkpoint_stall"]
    assert found["time_use_s"]["restart"] == {"a": 10.0, "b": 30.0}
    assert found["settings"] == {
        "checkpoint_every": {"a": "10", "b": "20"},
        "command": {"a": "python train.py --lr 1e-3", "b": "python train.py --lr 1e-2 --token [hidden]"},
    }


def test_people_get_tables(folder: Path) -> None:
    text = compare(folder, "good", "bad").output
    for expected in ("loss at step 59", "median tokens/s", "restart", "checkpoint every", "-16.7%"):
        assert expected in text


@pytest.mark.parametrize(
    ("check", "code"),
    [
        ("tokens_per_s -40%", ExitCode.REGRESSED),
        ("tokens_per_s -60%", ExitCode.SUCCESS),
        ("loss +10%", ExitCode.REGRESSED),
        ("loss +200%", ExitCode.SUCCESS),
        ("goodput -0.02", ExitCode.REGRESSED),
        ("goodput -0.2", ExitCode.SUCCESS),
        ("restarts +0", ExitCode.SUCCESS),
        ("default", ExitCode.REGRESSED),
    ],
)
def test_a_change_for_the_worse_beyond_the_check_is_a_regression(folder: Path, check: str, code: ExitCode) -> None:
    assert compare(folder, "good", "bad", "--fail-on", check).exit_code == code
    assert compare(folder, "bad", "good", "--fail-on", check).exit_code == ExitCode.SUCCESS


def test_one_of_several_checks_is_enough(folder: Path) -> None:
    result = compare(folder, "good", "bad", "--fail-on", "restarts +0", "--fail-on", "tokens_per_s -5%")
    assert result.exit_code == ExitCode.REGRESSED
    assert "passed     restarts +0" in result.output and "regressed  tokens_per_s -5%" in result.output


def test_a_number_that_is_missing_is_an_error_and_no_pass(folder: Path, tmp_path: Path) -> None:
    write_run(tmp_path, healthy_steps(100), run="bare")
    for pair in (("good", "bare"), ("bare", "good")):
        result = compare(folder, *pair, "--fail-on", "goodput -0.02")
        assert result.exit_code == ExitCode.FAILED
        assert "cannot check 'goodput -0.02', because a run lacks the number" in result.output


def test_a_loss_that_is_not_finite_is_a_regression_and_nothing_to_compare_with(folder: Path, tmp_path: Path) -> None:
    write_run(tmp_path, [*healthy_steps(50), counted(50, nonfinite=("loss",), step_s=0.5)], run="nan")
    outcomes = (("good", "nan", ExitCode.REGRESSED, "regressed"), ("nan", "good", ExitCode.FAILED, "unknown  "))
    for a, b, code, word in outcomes:
        result = compare(folder, a, b, "--fail-on", "loss +2%")
        assert result.exit_code == code and f"{word}  loss +2%" in result.output


@pytest.mark.parametrize(
    ("check", "named"),
    [
        ("speed -5%", "no number is called speed: use loss, "),
        ("loss 2%", "write a name and a signed change"),
        ("loss", "write a name and a signed change"),
        ("loss +1e999%", "this change is too large for a number"),
        ("loss +nan", "write a name and a signed change"),
        ("loss -2%", r"more is worse here: write \+"),
        ("goodput +1%", "more is better here: write -"),
    ],
)
def test_a_check_that_makes_no_sense_is_refused(check: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        parse_checks([check])


def test_the_default_checks_are_those_in_the_help_and_make_sense() -> None:
    assert [check.text for check in parse_checks(["default"])] == list(DEFAULT_CHECKS)
    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).output
    assert all(f'"{check}"' in " ".join(shown.split()) for check in DEFAULT_CHECKS)


def test_a_check_of_a_number_that_was_zero_allows_no_rise() -> None:
    (check,) = parse_checks(["restarts +10%"])
    assert check.outcome({"restarts": 0.0}, {"restarts": 0.0}) == "passed"
    assert check.outcome({"restarts": 0.0}, {"restarts": 1.0}) == "regressed"


def test_two_runs_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name, healthy_steps(10))
    found = compared(tmp_path, str(tmp_path / "one"), str(tmp_path / "two"))
    assert (found["a"], found["b"]) == (str(tmp_path / "one"), str(tmp_path / "two"))


def test_values_of_arguments_are_hidden_as_in_a_report_and_a_difference_still_shows(tmp_path: Path) -> None:
    for run, model in (("one", "small"), ("two", "hunter2")):
        write_run(tmp_path, healthy_steps(10), run=run, command=["python", "train.py", "--model", model, "--lr", "1"])
    shown = "python train.py --model [hidden] --lr 1"
    assert compared(tmp_path, "one", "two")["settings"] == {"command": {"a": shown, "b": shown}}
    assert "hunter2" not in compare(tmp_path, "one", "two").output
    asked = compared(tmp_path, "one", "two", "--show-arguments")["settings"]["command"]
    assert asked == {"a": shown.replace("[hidden]", "small"), "b": shown.replace("[hidden]", "hunter2")}


def test_the_error_about_an_unknown_run_names_the_runs_and_the_places(folder: Path) -> None:
    result = compare(folder, "good", "godo")
    assert (result.exit_code, result.stderr.count("\n")) == (ExitCode.FAILED, 1)
    assert f"no run godo under {folder}, which has bad, good, and none in a folder " in result.stderr
    for number in range(20):
        write_run(folder, healthy_steps(2), run=f"more-{number:02}")
    assert "which has bad, good, more-00, more-01, more-02, more-03, more-04, more-05 and 14 more, and" in (
        compare(folder, "good", "godo").stderr
    )
    assert "/none, which is no folder, and" in compare(folder / "none", "good", "godo").stderr
