import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import Result

from holdfast_cli.plans.start_command import on_one_line, places_to_set
from holdfast_cli.plans.unit_text import duration_text, size_text
from holdfast_trainer.config import from_arguments
from holdfast_trainer.planning.settings import PRESETS
from tests.cli.conftest import holdfast

DEMO = Path(__file__).parents[2] / "trainer/holdfast_trainer/configs/demo.toml"


def plan(*arguments: object, columns: int = 100) -> Result:
    return holdfast("plan", *arguments, columns=columns)


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
    for text in ("largest", "assumed:", "11.1% idle"):
        assert text in output


def test_a_search_prints_the_best_layouts_and_a_command_that_has_them() -> None:
    result = plan("--model", "13b", "--gpus", "16", "--gpu", "a100", "--json")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout)
    times = [found["time"]["total_s"] for found in printed["best"]]
    assert times == sorted(times)
    assert f"--parallel.dp {printed['best'][0]['parallel']['dp']} " in printed["command"]
    text = plan("--model", "13b", "--gpus", "16", "--gpu", "a100").stdout
    assert "layouts fit" in text and "start the first with" in text


def words(text: str) -> list[str]:
    """Return the words of the command that a plan has printed."""
    lines = text.splitlines()
    [first] = [at for at, line in enumerate(lines) if line.startswith(("holdfast run", "holdfast publish"))]
    last = next(at for at in range(first, len(lines)) if not lines[at].endswith("\\"))
    return shlex.split("\n".join(lines[first : last + 1]).replace("\\\n", " "))


@pytest.mark.parametrize("columns", [60, 80])
def test_the_command_can_be_pasted_and_starts_the_layout_with_all_settings(columns: int, tmp_path: Path) -> None:
    file = tmp_path / "my run.toml"
    file.write_text("[model]\nlayers = 8\n[train]\nglobal_batch = 64\n")
    arguments = ["--config", str(file), "--gpus", "8", "--parallel.tp=2", "--train.steps", "7", "--data.source=a b.txt"]
    printed = words(plan(*arguments, columns=columns).stdout)
    assert printed[:5] == ["holdfast", "run", "--ranks", "8", "--"]
    flags = printed[printed.index("holdfast_trainer") + 1 :]
    config = from_arguments(flags)
    assert (config.model.layers, config.train.global_batch, config.train.steps) == (8, 64, 7)
    assert (config.parallel.ranks, config.parallel.tp, config.data.source) == (8, 2, "a b.txt")


def test_several_nodes_are_published_with_as_many_ranks_on_each() -> None:
    printed = words(plan("--model", "13b", "--gpus", "12", "--gpu", "a100").stdout)
    assert printed[:8] == ["holdfast", "publish", "--run", "planned", "--nodes", "2", "--ranks-per-node", "6"]
    assert from_arguments(printed[printed.index("holdfast_trainer") + 1 :]).model == PRESETS["13b"].model


@pytest.mark.parametrize("preset", ["8b", "405b"])
def test_a_preset_is_written_as_a_file_that_the_trainer_reads(preset: str, tmp_path: Path) -> None:
    file = tmp_path / "preset.toml"
    source = 'a "b" \U0001f600 \u00e4 \x7f'
    result = plan("--model", preset, "--write", str(file), "--parallel.microbatches", "2", "--data.source", source)
    assert result.exit_code == 0, result.stderr
    config = from_arguments(["--config", str(file)])
    assert config.model == PRESETS[preset].model
    assert (config.train.global_batch, config.precision.compute) == (PRESETS[preset].global_batch, "bf16")
    assert (config.parallel.microbatches, config.data.source) == (2, source)
    again = plan("--model", preset, "--write", str(file))
    assert (again.exit_code, again.stderr.count("\n")) == (78, 1)
    assert "the file exists: name another, or remove it" in again.stderr


def test_a_search_writes_the_first_layout(tmp_path: Path) -> None:
    file = tmp_path / "found.toml"
    result = plan("--model", "8b", "--gpus", "8", "--write", str(file), "--json")
    found = json.loads(result.stdout)
    assert found["command"] == f"holdfast run --ranks 8 -- python -m holdfast_trainer --config {file}"
    assert from_arguments(["--config", str(file)]).parallel.model_dump() == found["best"][0]["parallel"]


def test_a_layout_that_does_not_fit_is_not_suggested() -> None:
    text = plan("--model", "70b").stdout
    assert "does not fit: each rank needs" in text and "holdfast run" not in text


def test_a_small_model_is_shown_in_its_own_units_at_80_columns() -> None:
    text = plan("--parallel.dp", "4", columns=80).stdout
    assert "fits: each rank needs 8.22 MB of 72.0 GB" in text and "…" not in text
    assert not re.search(r"\de[-+]\d", text)


@pytest.mark.parametrize(
    ("size", "printed"),
    [(0.0, "0"), (512, "512 B"), (3.37e7, "33.7 MB"), (30e9, "30.0 GB"), (677e9, "677 GB"), (5.65e12, "5.65 TB")],
)
def test_a_size_has_the_unit_that_suits_it(size: float, printed: str) -> None:
    assert size_text(size) == printed


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [(8.4e-6, "8.40 µs"), (0.5, "500 ms"), (90, "90.0 s"), (3600, "60.0 min"), (7200, "2.00 h"), (8e6, "92.6 days")],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float, printed: str) -> None:
    assert duration_text(seconds) == printed


def test_a_run_over_tokens_is_explained_with_each_formula_and_its_numbers() -> None:
    arguments = ("--model", "7b", "--parallel.dp", "16", "--tokens", "1e12", "--hardware.gpu_hour_price", "2")
    result = plan(*arguments, "--explain", "--json")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout.splitlines()[-1])
    assert printed["run"]["price"] == pytest.approx(16 * printed["run"]["duration_s"] / 3600 * 2)
    assert {"name", "unit", "formula", "numbers", "value"} == set(printed["formulas"][0])
    assert [row["gpus"] for row in printed["scaling"]] == [1, 2, 4, 8, 16]
    assert "1e+12 tokens are 4.61e+22 operations" in result.stderr
    for line in ("(3 + recomputed) * forward_flop", "all-reduce, tree of all ranks", "sqrt(2 * checkpoint_s * mtbf_s)"):
        assert line in result.stderr


def test_a_pipeline_that_the_trainer_refuses_is_planned_and_not_started() -> None:
    text = plan("--model", "7b", "--parallel.pp", "32", "--parallel.microbatches", "8", "--explain").stdout
    assert "the trainer refuses this layout: parallel.microbatches is 8, but 32 pipeline ranks" in text
    assert re.search(r"1f1b +20\.5% +34\.0% +50\.8% +67\.4% +80\.5% +279", text)
    assert "holdfast publish" not in text


def test_a_layout_that_does_not_divide_or_fit_names_the_nearest_that_does() -> None:
    refused = plan("--model", "7b", "--parallel.tp", "6")
    assert (refused.exit_code, refused.stderr.count("\n")) == (78, 1)
    assert "parallel.tp = 6 does not divide" in refused.stderr
    assert "the nearest layout of 6 GPUs that fits: --parallel" in refused.stderr
    assert "the nearest layout of 4 GPUs that fits: --parallel.microbatches" in plan(
        "--model", "7b", "--parallel.dp", "4"
    ).stdout.replace("\n", " ")


def test_a_search_says_why_and_what_the_next_best_costs() -> None:
    text = plan("--model", "70b", "--gpus", "64").stdout
    assert re.search(r"tp \d+: cuts each block, and sends .* within nodes", text.replace("\n", " "))
    assert "slower" in text
    given = plan("--model", "7b", "--gpus", "8", "--parallel.tp", "2", "--explain", "--json")
    assert re.search(r"tp 2: .*; given", given.stderr.replace("\n", " "))
    assert "cp 1: no part is cut there, so that nothing is sent for it; no other is searched" in " ".join(
        given.stderr.split()
    )
    assert "the first in detail:" in given.stderr
    wide = plan(
        "--model", "7b", "--gpus", "16", "--parallel.tp", "16", "--tokens", "1e12", "--hardware.gpu_hour_price", "2"
    )
    shown = " ".join(wide.stdout.split())
    assert "also between nodes, over a network of 400 Gbit/s" in shown
    assert "1e+12 tokens are 4.61e+22 operations" in shown
    assert "--hardware" not in shown
    assert {"best", "smallest_bytes", "choices", "first"} <= json.loads(given.stdout).keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "9b"), "--model 9b"),
        (("--gpu", "abacus"), "--gpu abacus"),
        (("--config", "/no/such/file"), "--config /no/such/file"),
        (("--model", "7b", "--gpu", "v100"), "change --gpu or [precision]"),
        (("--model", "7b", "--parallel.nope", "3"), "--parallel.nope"),
        (("--model", "175b", "--gpus", "8"), "no layout of --gpus 8 will do"),
        (("--model", "7b", "--gpus", "8", "--parallel.dp", "3"), "change --parallel.dp 3, or take other GPUs"),
        (("--hardware.peak_tflops", "inf"), "hardware.peak_tflops: Input should be a finite number"),
    ],
)
def test_errors_are_one_line_that_names_the_option(arguments: tuple[str, ...], message: str) -> None:
    result = plan(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_only_the_places_to_set_are_left_for_the_shell() -> None:
    assert on_one_line(["--redis", "$REDIS", "--checkpoints", "$CHECKPOINTS", "$HOME/`x`"]) == (
        '--redis "$REDIS" --checkpoints "$CHECKPOINTS" \'$HOME/`x`\''
    )
    assert places_to_set(["$REDIS"]) == "set REDIS to the URL of Redis, and CHECKPOINTS to a folder that all nodes see"
