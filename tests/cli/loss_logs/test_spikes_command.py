"""``holdfast spikes`` as people and scripts use it, with the odd files that they have."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from holdfast_cli.loss_logs import log_document, log_report
from holdfast_proto.exit_codes import ExitCode
from tests.cli.conftest import holdfast

HEALTHY = 200


def losses(steps: int = HEALTHY, *, spike_at: int | None = None, width: int = 5) -> list[float]:
    rng = random.Random(2)
    spiked = range(spike_at, spike_at + width) if spike_at is not None else range(0)
    return [round((6.0 if step in spiked else 2.0) + rng.gauss(0.0, 0.02), 5) for step in range(steps)]


def csv_of(values: Sequence[object], names: str = "step,loss") -> str:
    return table(names, *(f"{step},{value}" for step, value in enumerate(values))) + "\n"


def table(*rows: str) -> str:
    return "\n".join(rows)


def json_lines(entries: Sequence[dict[str, Any]]) -> str:
    return table(*map(json.dumps, entries))


def write(folder: Path, content: str | bytes, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def spikes(*arguments: str | Path, **others: Any) -> Result:
    return holdfast("spikes", *arguments, **others)


def answer(*arguments: str | Path) -> dict[str, Any]:
    result = spikes(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    (line,) = result.stdout.splitlines()
    return dict(json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON")))


def spikes_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in found["findings"] if one["tier"] == "spike"]


def refusal(*arguments: str | Path) -> str:
    result = spikes(*arguments)
    assert result.exit_code == ExitCode.CONFIGURATION, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


def test_a_healthy_log_has_no_finding(tmp_path: Path) -> None:
    log = write(tmp_path, csv_of(losses()))
    result = spikes(log, "--fail-on", "blip")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{log}: 200 losses of column 'loss' · nothing found · ")


def test_it_says_that_the_first_losses_are_not_judged(tmp_path: Path) -> None:
    few, more = (write(tmp_path, csv_of(losses(steps)), f"{steps}.csv") for steps in (32, 33))
    assert "too few losses to find a spike: it takes more than 32" in spikes(few).stdout
    assert "the first 32 losses are not judged for spikes" in spikes(more).stdout
    assert [answer(log)["baseline_losses"] for log in (few, more)] == [32, 32]


def test_a_spike_is_in_the_table_and_fails_on_demand_only(tmp_path: Path) -> None:
    log = write(tmp_path, csv_of(losses(spike_at=120)))
    found = answer(log)
    assert found["counts"] == {"spike": 1, "blip": 2}
    (spike,) = spikes_of(found)
    assert (spike["step"], spike["row"]) == (122, 124) and spike["zscore"] > 5
    assert (spike["loss"], spike["level"]) == (pytest.approx(6.0, abs=0.1), pytest.approx(2.0, abs=0.1))
    assert spikes(log).exit_code == 0
    lines = spikes(log).stdout.splitlines()
    assert lines[0].split() == ["finding", "step", "row", "loss", "level", "z"]
    assert lines[3].split()[:3] == ["spike", "122", "124"]
    codes = {tier: spikes(log, "--fail-on", tier).exit_code for tier in ("blip", "spike", "slow_rise", "non_finite")}
    assert codes == {"blip": 1, "spike": 1, "slow_rise": 0, "non_finite": 0}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_line_ends_byte_order_marks_quotes_and_blank_lines(tmp_path: Path, separator: str, end: str) -> None:
    rows = [f'"{step}"{separator}"{loss}"{end}' for step, loss in enumerate(losses(spike_at=120))]
    text = "\ufeff" + f'"step"{separator}"loss"{end}' + end.join(["", *rows])
    assert answer(write(tmp_path, text))["counts"] == {"spike": 1, "blip": 2}


@pytest.mark.parametrize(
    ("names", "loss", "step"),
    [
        ("step,train_loss", "train_loss", "step"),
        ("iteration,lm loss", "lm loss", "iteration"),
        ("Step,Value", "Value", "Step"),
        ("global_step,train/loss", "train/loss", "global_step"),
        ("Step,run-7 - train/loss", "run-7 - train/loss", "Step"),
        ("epoch,LOSS", "LOSS", "epoch"),
        ("trainer/global_step,train_loss_step", "train_loss_step", "trainer/global_step"),
        ("_step,loss/train", "loss/train", "_step"),
        ("row,total_loss", "total_loss", None),
    ],
)
def test_columns_are_found_by_the_names_that_trainers_and_trackers_use(
    tmp_path: Path, names: str, loss: str, step: str | None
) -> None:
    found = answer(write(tmp_path, csv_of(losses(), names)))
    assert found["columns"] == ({"loss": loss, "step": step} if step else {"loss": loss})
    assert found["losses"] == HEALTHY


def test_the_step_is_the_column_that_rows_with_a_loss_have(tmp_path: Path) -> None:
    rows = [f",{7 * step},{loss},,{step // 50}" for step, loss in enumerate(losses())]
    rows[50:50] = ["3,,,2.5,0", "4,,,2.4,0"]
    found = answer(write(tmp_path, table("step,iteration,train_loss_step,val_loss,epoch", *rows)))
    assert (found["columns"]["step"], found["losses"], found["resumes"]) == ("iteration", HEALTHY, 0)


def test_epochs_are_steps_only_if_they_count_the_losses(tmp_path: Path) -> None:
    rows = [f"{step / 100},{loss}" for step, loss in enumerate(losses())]
    assert "step" not in answer(write(tmp_path, table("epoch,loss", *rows)))["columns"]


def test_numbers_are_read_as_trackers_write_them(tmp_path: Path) -> None:
    entries = [{"iteration": f"{step}/5000", "loss": str(1000 * loss)} for step, loss in enumerate(losses())]
    entries += [{"iteration": "200/5000", "loss": "2,012.5"}, {"iteration": "201/5000", "loss": "NaN"}]
    found = answer(write(tmp_path, json_lines(entries), "log.jsonl"))
    assert (found["losses"], found["counts"]) == (HEALTHY + 2, {"non_finite": 1})
    assert found["findings"][0]["step"] == 201


def test_of_runs_side_by_side_one_is_chosen(tmp_path: Path) -> None:
    names = '"Step","a - train/loss","a - train/loss__MIN","b - train/loss"'
    rows = [f"{step},{loss if step < 150 else ''},,{loss}" for step, loss in enumerate(losses(spike_at=160))]
    log = write(tmp_path, table(names, *rows))
    expected = "row 1 has losses of several runs: choose --loss-column, one of 'a - train/loss', 'b - train/loss'"
    assert expected in refusal(log)
    ended = answer(log, "--loss-column", "a - train/loss")
    assert (ended["losses"], ended["counts"]) == (150, {})
    assert answer(log, "--loss-column", "b - train/loss")["counts"]["spike"] == 1


@pytest.mark.parametrize("others", [{"grad norm": float("nan")}, {}, {"lm loss": None}])
def test_a_loss_that_vanishes_while_the_log_continues_is_not_finite(tmp_path: Path, others: dict[str, object]) -> None:
    entries: list[dict[str, object]] = [{"iteration": step, "lm loss": loss} for step, loss in enumerate(losses())]
    entries += [{"iteration": step, "learning rate": 1e-5, **others} for step in range(HEALTHY, HEALTHY + 20)]
    log = write(tmp_path, json_lines(entries), "log.jsonl")
    result, found = spikes(log, "--fail-on", "non_finite"), answer(log)
    assert result.exit_code == ExitCode.FAILED
    assert "the loss is missing from step 200 on, and the log continues" in result.stdout
    assert any(line.split()[:3] == ["missing_loss", "200", "201"] for line in result.stdout.splitlines())
    assert (found["counts"]["non_finite"], found["ends_finite"]) == (1, False)


def test_a_loss_that_turns_zero_is_not_finite(tmp_path: Path) -> None:
    log = write(tmp_path, json.dumps({"log_history": entries_of([*losses(), *[0.0] * 6])}), "trainer_state.json")
    (found,) = answer(log)["findings"]
    assert (found["tier"], found["kind"], found["step"]) == ("non_finite", "zero_loss", HEALTHY)
    assert spikes(log, "--fail-on", "non_finite").exit_code == ExitCode.FAILED


def test_what_a_trainer_prints_is_judged_from_a_pipe() -> None:
    lines = [f"iter {step}: loss {loss:.4f}, time 148.74ms" for step, loss in enumerate(losses(spike_at=120))]
    result = spikes("-", "--fail-on", "spike", input=table("training ...", *lines, ""))
    assert result.exit_code == ExitCode.FAILED
    assert any(line.split()[:3] == ["spike", "122", "124"] for line in result.stdout.splitlines())
    assert spikes("-", input=csv_of(losses())).stdout.startswith("stdin: 200 losses of column 'loss' · nothing found")


@pytest.mark.parametrize(("by", "is_bad"), [(0.0, False), (1.0, True)])
def test_steps_that_go_back_are_a_resume_and_a_bad_one_is_a_spike(tmp_path: Path, by: float, is_bad: bool) -> None:
    rows = [f"{step},{loss}" for step, loss in enumerate(losses(150))]
    rows += [f"{120 + step},{loss + by}" for step, loss in enumerate(losses(100))]
    found = answer(write(tmp_path, table("step,loss", *rows)))
    assert (found["resumes"], found["counts"].get("spike", 0)) == (1, int(is_bad))
    messages = [spike["message"].startswith("the run resumed badly after step 119") for spike in spikes_of(found)]
    assert messages == [True] * is_bad and bool(found["counts"]) == is_bad


def test_columns_can_be_named(tmp_path: Path) -> None:
    rows = [f"{loss},{10 * step},0.5" for step, loss in enumerate(losses(spike_at=120))]
    log = write(tmp_path, table("ce,at,loss", *rows))
    assert answer(log)["columns"] == {"loss": "loss"}
    found = answer(log, "--loss-column", "ce", "--step-column", "at")
    assert found["columns"] == {"loss": "ce", "step": "at"}
    assert [one["step"] for one in spikes_of(found)] == [1220]
    assert "--loss-column takes one of 'ce', 'at', 'loss'" in refusal(log, "--loss-column", "nll")


def test_json_lines_with_evaluations_between_the_losses(tmp_path: Path) -> None:
    entries: list[dict[str, object]] = [{"step": 0, "eval_loss": 3.0}]
    for step, loss in enumerate(losses(spike_at=120)):
        entries += [{"step": step, "loss": loss, "lr": 0.1}, {"step": step, "eval_loss": 3.0}]
    log = write(tmp_path, json_lines(entries), "metrics.jsonl")
    found = answer(log)
    expected = {"step": "step", "loss": "loss", "learning_rate": "lr", "validation_loss": "eval_loss"}
    assert found["columns"] == expected
    assert (found["losses"], found["repeated_rows"], found["resumes"]) == (HEALTHY, 0, 0)
    assert found["counts"]["spike"] == 1


def test_losses_that_are_not_finite_and_cells_that_are_empty(tmp_path: Path) -> None:
    values: list[object] = [*losses(100), "", "NaN", "nan", "inf", "-Infinity", "", *losses(50), "NaN"]
    log = write(tmp_path, csv_of(values))
    found = answer(log)
    assert (found["counts"], found["ends_finite"]) == ({"non_finite": 2}, False)
    assert [(one["step"], one["loss"]) for one in found["findings"]] == [(101, None), (156, None)]
    assert "the loss is not finite at the end: the last finite loss is at step 155" in spikes(log).stdout
    assert spikes(log, "--fail-on", "non_finite").exit_code == ExitCode.FAILED


def test_a_validation_loss_that_is_not_finite_is_no_tier_of_the_loss(tmp_path: Path) -> None:
    rows = [f"{step},{loss},{'nan' if step == 50 else ''}" for step, loss in enumerate(losses())]
    log = write(tmp_path, table("step,loss,val_loss", *rows))
    (found,) = answer(log)["findings"]
    assert (found["tier"], found["kind"], found["step"]) == ("", "non_finite_validation_loss", 50)
    assert spikes(log, "--fail-on", "blip").exit_code == 0


def test_the_first_loss_of_a_step_that_is_written_twice_counts(tmp_path: Path) -> None:
    rows = [f"{step},{value}" for step, loss in enumerate(losses()) for value in (loss, 60.0)]
    found = answer(write(tmp_path, table("step,loss", *rows)))
    assert (found["losses"], found["repeated_rows"], found["counts"]) == (HEALTHY, HEALTHY, {})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("step,loss\n", "no row has a number in column 'loss'"),
        ("step,loss\n1,\n2,null\n", "no row has a number in column 'loss'"),
        ("step,value_x\n1,2\n", "row 1 names no known column of a loss, and no line of text has one"),
        ("hello\nworld\n", "row 1 names no known column of a loss, and no line of text has one"),
        ("step,loss\n1,2.0\n2,high\n", "row 3, column 'loss': 'high' is no number"),
        ("step,loss\n1,2.0\n\n1.5,2.0\n", "row 4, column 'step': '1.5' is no step"),
        ("step,loss\n-1,2.0\n", "row 2, column 'step': '-1' is no step"),
        ("step,loss\nnan,2.0\n", "row 2, column 'step': 'nan' is no step"),
        ("step,loss\n1,2.0,3.0\n", "row 2: 3 cells under 2 names"),
        ('step,loss\n1,"2.0\n', "row 2"),
        (b"\x1f\x8b\x08\x00\xff\xfe\xfd binary", "not text"),
        (b"step,loss\n1,2\0\n", "row 2: not text"),
        ('step,loss\n1,2\n\n2,"1.9\n3,1.8\n4,1.7\n', "row 4: a quote opens in this row and is not closed: close it"),
        ('step,loss\n1,2\n2,"1.9\n3,1.8\n4,1.7', "row 3: a quote opens in this row and is not closed"),
        ('step,loss\n1,2\n2,"1.9\n' + "3,1.8\n" * 30_000, "row 3: a quote opens in this row and is not closed"),
        (b"step,loss\n1,\xff\xfe\n", "not text in UTF-8"),
        ("x" * (1 << 20) + ",loss\n", "longer than"),
        ('{"step": 1, "loss": 2}\n{"step": 2, \n', "row 2: not valid JSON"),
        ('{"step": 1, "loss": 2}\n{"step": 2, \n{"step": 3, "loss": 2}', "row 2: not valid JSON"),
        ('[{"step": 1, "loss": 2},\n {"step": 2, ', "line 2: not valid JSON: give an array of objects"),
        ('[{"step": 1, "loss": 2}, 3]', "row 2: not a JSON object"),
        ('{\n "step": 1\n}', "JSON without an array of objects: give an array of objects, an object with one in log_"),
        ('{"log_history": {}}', "JSON without an array of objects"),
        ("[]", "the array is empty"),
        ("[" * 100_000, "this JSON cannot be read"),
        ('{"step": 1, "loss": 2}\n[3]\n', "row 2: not a JSON object"),
        ('{"step": 1, "loss": [2]}\n', "row 1, column 'loss': [2] is no number"),
        ('{"step": 1, "loss": true}\n', "row 1, column 'loss': True is no number"),
        ('{"step": 1, "loss": 1' + "0" * 400 + "}\n", "row 1, column 'loss'"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, content: str | bytes, expected: str) -> None:
    log = write(tmp_path, content)
    line = refusal(log)
    assert line.startswith(f"holdfast: {log}: ") and expected in line and len(line) < 400


def entries_of(values: Sequence[float]) -> list[dict[str, object]]:
    """Return objects as the Trainer of Hugging Face logs them: an evaluation in between, and a summary at the end."""
    logged: list[dict[str, object]] = [
        {"epoch": step / 100, "grad_norm": 1.0, "learning_rate": 1e-4, "loss": loss, "step": step}
        for step, loss in enumerate(values)
    ]
    logged.insert(50, {"epoch": 0.5, "eval_loss": 2.1, "eval_runtime": 3.0, "step": 49})
    return [*logged, {"epoch": 2.0, "step": len(values) - 1, "total_flos": 1e15, "train_loss": 2.3}]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("is_bare", [True, False])
def test_one_json_document_is_read(tmp_path: Path, is_bare: bool, indent: int | None) -> None:
    entries = entries_of(losses(spike_at=120))
    document = entries if is_bare else {"best_metric": None, "log_history": entries, "max_steps": 200}
    log = write(tmp_path, json.dumps(document, indent=indent), "trainer_state.json")
    found = answer(log)
    assert (found["columns"]["loss"], found["columns"]["validation_loss"]) == ("loss", "eval_loss")
    assert (found["losses"], found["resumes"], found["counts"]) == (HEALTHY, 0, {"spike": 1, "blip": 2})
    assert [(one["step"], one["row"]) for one in spikes_of(found)] == [(122, 124)]


def test_a_json_document_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_document, "MOST_DOCUMENT_CHARACTERS", 1 << 20)
    text = json.dumps(entries_of(losses()))
    assert answer(write(tmp_path, text.ljust(1 << 20)))["losses"] == HEALTHY
    assert "one JSON document of more than 1 MiB: save it as CSV" in refusal(write(tmp_path, text.ljust((1 << 20) + 1)))


@pytest.mark.parametrize("last", [b"1", b"199", b'199,"2.0', b"199,2.0e-", b"199,\xc3"])
def test_a_last_row_that_is_cut_off_is_left_out(tmp_path: Path, last: bytes) -> None:
    found = answer(write(tmp_path, csv_of([2.0] * 199).encode() + last))
    assert (found["losses"], found["resumes"], found["cut_row"]) == (199, 0, 201)


def test_a_step_that_is_cut_off_is_no_resume(tmp_path: Path) -> None:
    rows = [f"2.0,{step}" for step in range(199)]
    log = write(tmp_path, table("loss,step", *rows, "2.0,19"))
    found = answer(log)
    assert (found["losses"], found["resumes"], found["cut_row"]) == (199, 0, 201)
    assert "row 201, the last one, is cut off and left out" in spikes(log).stdout
    found = answer(write(tmp_path, table("loss,step", *rows, "2.0,19", "")))
    assert (found["losses"], found["resumes"], found["cut_row"]) == (200, 1, None)


@pytest.mark.parametrize("rows", [5, 199])
def test_a_last_object_that_is_cut_off_is_left_out(tmp_path: Path, rows: int) -> None:
    lines = [json.dumps({"step": step, "loss": 2.0}) for step in range(rows)]
    for cut in ('{"step": 1', '{"step": 199, "loss": 2.0', '{"step": 199, "note": "\xc3'):
        found = answer(write(tmp_path, table(*lines, cut).encode("latin-1")))
        assert (found["losses"], found["resumes"], found["cut_row"]) == (rows, 0, rows + 1)
    found = answer(write(tmp_path, table(*lines, '{"step": 3, "loss": 2.0}')))
    assert (found["losses"], found["resumes"], found["cut_row"]) == (rows + 1, 1, None)


def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "nothing.csv")
    assert "Is a directory" in refusal(tmp_path)


def test_memory_does_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings beyond the first thousand are counted and left out. Here, beyond the first hundred."""
    monkeypatch.setattr(log_report, "MOST_FINDINGS", 100)
    values = [60.0 if step % 40 == 39 else loss for step, loss in enumerate(losses(4_400))]
    found = answer(write(tmp_path, csv_of(values)))
    assert len(found["findings"]) == 100
    assert found["counts"]["blip"] == 100 + found["findings_left_out"] > 105
