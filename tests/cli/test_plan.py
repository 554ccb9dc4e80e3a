import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import Result

from holdfast_cli.views.plan_command import on_one_line, places_to_set
from holdfast_cli.views.plan_view import size_unit
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
    assert "all MB" in text and "fits: each rank needs 8.22 MB of 72.0 GB" in text and "…" not in text
    assert not re.search(r"\de[-+]\d", text)


@pytest.mark.parametrize(
    ("sizes", "printed"),
    [
        ([1.5e12, 2e9], ["1.50 TB", "<0.01 TB"]),
        ([677e9, 13.5e9, 3.37e9, 0.0], ["677 GB", "13.5 GB", "3.37 GB", "0 GB"]),
        ([8.2e6, 1e3], ["8.20 MB", "<0.01 MB"]),
        ([512.0], ["0.51 KB"]),
    ],
)
def test_sizes_of_one_table_share_the_unit_of_the_largest(sizes: list[float], printed: list[str]) -> None:
    unit = size_unit(sizes)
    assert [f"{unit.number(size)} {unit.name}" for size in sizes] == printed


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
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_only_the_places_to_set_are_left_for_the_shell() -> None:
    assert on_one_line(["--redis", "$REDIS", "--checkpoints", "$CHECKPOINTS", "$HOME/`x`"]) == (
        '--redis "$REDIS" --checkpoints "$CHECKPOINTS" \'$HOME/`x`\''
    )
    assert places_to_set(["$REDIS"]) == "set REDIS to the URL of Redis, and CHECKPOINTS to a folder that all nodes see"
