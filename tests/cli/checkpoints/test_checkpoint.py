import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from holdfast_checkpoint.format.durable import write_file
from holdfast_checkpoint.format.keeping import keep
from holdfast_checkpoint.format.manifest import MANIFEST, load_manifest
from holdfast_checkpoint.format.shard_index import index_path, load_index, shard_path
from holdfast_checkpoint.store.overview import FoundCheckpoint
from holdfast_cli.checkpoints.checkpoint_folder import find_checkpoints
from holdfast_cli.checkpoints.drill import differences
from holdfast_cli.checkpoints.tables import checkpoint_as_json
from tests.cli.conftest import checkpoint

pytestmark = pytest.mark.system

LAYOUTS = "tests/support/restored_layouts.py"
STEP = 2
PIPELINE, SHARDED = "pp2-dp2", "tp2-dp2"


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=Path.cwd()
    )


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real checkpoints of step 2. Four ranks wrote one in each of two layouts."""
    folder = tmp_path_factory.mktemp("worlds")
    done = run_python(LAYOUTS, str(folder), PIPELINE, SHARDED)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def saved(worlds: Path) -> Callable[[str], Path]:
    return lambda layout: worlds / f"folder of {layout}" / "checkpoints"


@pytest.fixture
def copy(tmp_path: Path, saved: Callable[[str], Path]) -> Path:
    """Checkpoints that a test may change."""
    name = "step-00000002"
    return shutil.copytree(saved(SHARDED) / name, tmp_path / "checkpoints" / name).parent


def flip_a_byte(folder: Path, rank: int, name: str) -> None:
    directory = folder / "step-00000002"
    stored = next(tensor for tensor in load_index(directory, rank).tensors if tensor.entry.name == name)
    assert stored.is_stored
    data = bytearray(shard_path(directory, rank).read_bytes())
    data[stored.stored_offset + stored.stored_bytes // 2] ^= 1
    shard_path(directory, rank).write_bytes(data)


def stored_by(folder: Path, rank: int) -> str:
    """Return the name of a tensor in the shard of ``rank``."""
    index = load_index(folder / "step-00000002", rank)
    return next(tensor.entry.name for tensor in index.tensors if tensor.is_stored)


def test_list_shows_size_and_layout_and_what_is_no_checkpoint(copy: Path) -> None:
    (copy / "step-00000007").mkdir()
    (copy / "step-00000009").mkdir()
    (copy / "step-00000009" / MANIFEST).write_text("{}")
    first, unfinished, damaged = json.loads(checkpoint("list", "--checkpoints", copy, "--json").stdout)
    assert (first["step"], first["layout"], first["stale"]) == (STEP, {"pp": 1, "dp": 2, "tp": 2}, False)
    assert first["raw_bytes"] == load_manifest(copy / "step-00000002").raw_bytes
    assert unfinished == {"step": 7, "history": 1, "problem": "it was never finished"}
    assert "manifest.json is damaged" in damaged["problem"]
    text = checkpoint("list", "--checkpoints", copy).stdout
    assert "dp 2 x tp 2" in text and "it was never finished" in text


def test_a_checkpoint_that_others_build_on_is_shown_as_kept_for_them(copy: Path) -> None:
    (base,) = find_checkpoints(copy)
    assert base.manifest is not None
    builder = FoundCheckpoint(5, base.directory, replace(base.manifest, step=5, bases=(STEP,)), "")
    assert checkpoint_as_json(base, [base, builder])["kept_for"] == [5]
    assert checkpoint_as_json(builder, [base, builder])["bases"] == [STEP]


def test_a_checkpoint_that_is_kept_says_why_until_it_is_released(copy: Path) -> None:
    keep(copy / "step-00000002", "loss spike at step 4")
    [shown] = json.loads(checkpoint("list", "--checkpoints", copy, "--json").stdout)
    assert shown["kept"] == "loss spike at step 4"
    assert "loss spike" in checkpoint("list", "--checkpoints", copy).stdout
    assert checkpoint("release", STEP, "--checkpoints", copy).exit_code == 0
    assert find_checkpoints(copy)[0].kept == ""
    again = checkpoint("release", STEP, "--checkpoints", copy)
    assert again.exit_code == 1 and "is not kept" in again.stderr


def test_show_counts_the_shards_of_each_tensor_and_gives_its_whole_shape(copy: Path) -> None:
    shown = json.loads(checkpoint("show", STEP, "--checkpoints", copy, "--json").stdout)
    tensors = {tensor["name"]: tensor for tensor in shown["tensors"]}
    assert (tensors["model/up.weight"]["global_shape"], tensors["model/up.weight"]["shards"]) == ([8, 6], 4)
    assert (tensors["model/norm.weight"]["dtype"], tensors["model/norm.weight"]["shards"]) == ("float32", 2)
    assert tensors["position/order"]["shards"] == 4
    assert sum(tensor["stored_bytes"] for tensor in shown["tensors"]) == shown["stored_bytes"]
    assert "model/down.weight" in checkpoint("show", "--checkpoints", copy).stdout


def test_verify_names_file_and_tensor_of_every_damaged_shard(copy: Path) -> None:
    names = [stored_by(copy, rank) for rank in (1, 3)]
    for rank, name in zip((1, 3), names, strict=True):
        flip_a_byte(copy, rank, name)
    result = checkpoint("verify", "--all", "--checkpoints", copy)
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert f"rank-00001.shard is damaged: tensor {names[0]} " in first
    assert f"rank-00003.shard is damaged: tensor {names[1]} " in second


def test_verify_reports_a_lost_index_and_a_manifest_of_other_tensors(copy: Path) -> None:
    directory = copy / "step-00000002"
    manifest = load_manifest(directory)
    write_file(directory / MANIFEST, replace(manifest, content_digest="0" * 32).encode())
    assert "the manifest is that of other tensors" in checkpoint("verify", "--checkpoints", copy).stdout
    index_path(directory, 2).unlink()
    assert "rank-00002.json: No such file" in checkpoint("verify", "--checkpoints", copy).stdout


def test_drill_in_another_layout_finds_every_tensor_as_it_was_saved(copy: Path) -> None:
    done = run_python("-m", "holdfast_cli", "checkpoint", "drill", "--ranks", "2", "--checkpoints", str(copy), "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["step"], shown["ranks"], shown["differences"]) == (STEP, 2, [])
    assert shown["loaded_bytes"] >= load_manifest(copy / "step-00000002").raw_bytes


def test_drill_names_the_file_and_tensor_that_cannot_be_loaded(copy: Path) -> None:
    name = stored_by(copy, 0)
    flip_a_byte(copy, 0, name)
    done = run_python("-m", "holdfast_cli", "checkpoint", "drill", "--ranks", "1", "--checkpoints", str(copy))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"rank-00000.shard is damaged: tensor {name}" in done.stderr


def test_a_part_that_arrived_wrong_or_not_at_all_is_a_difference(copy: Path) -> None:
    index = load_index(copy / "step-00000002", 1)
    spread = [tensor for tensor in index.tensors if tensor.is_stored and tensor.entry.writer == 1]
    lost, wrong, *good = spread
    found = {(tensor.entry.name, tensor.entry.global_offset): tensor.digest for tensor in (wrong, *good)}
    found[wrong.entry.name, wrong.entry.global_offset] = lost.digest
    shown = list(differences([replace(index, tensors=tuple(spread))], found))
    assert shown == [
        f"rank 1 tensor {lost.entry.name}: was not loaded",
        f"rank 1 tensor {wrong.entry.name}: arrived with other values than were saved",
    ]


@pytest.mark.parametrize("layout", [PIPELINE, SHARDED])
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_exported_weights_are_those_of_the_whole_model(
    saved: Callable[[str], Path], worlds: Path, tmp_path: Path, layout: str, ending: str
) -> None:
    target = tmp_path / f"model.{ending}"
    assert checkpoint("export", "--checkpoints", saved(layout), "--to", target).exit_code == 0
    tensors: Any = load_file(target) if ending == "safetensors" else torch.load(target, weights_only=True)
    digests: dict[str, str] = {}
    for rank in range(4):
        digests |= json.loads((worlds / f"{layout}.0.{rank}.json").read_text())["tensors"]
    from tests.support.restored_layouts import digest

    expected = {name.removeprefix("model/"): value for name, value in digests.items() if name.startswith("model/")}
    assert {name: digest(tensor) for name, tensor in tensors.items()} == expected
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_run_of_another_layout_starts_from_what_was_exported_and_imported(
    saved: Callable[[str], Path], worlds: Path, tmp_path: Path
) -> None:
    places = [tmp_path / ending / "place" for ending in ("safetensors", "pt")]
    for place in places:
        export_and_import(saved(PIPELINE), place)
        (place / "dcp").symlink_to(worlds / f"folder of {PIPELINE}" / "dcp")
    start = "import sys; from pathlib import Path; from tests.support.restored_layouts import load, run_world;"
    start += "[run_world(Path(place), 'imported', 1, 'dp2', load) for place in sys.argv[1:]]"
    done = run_python("-c", start, *map(str, places))
    assert done.returncode == 0, done.stderr
    before = [json.loads((worlds / f"{PIPELINE}.0.{rank}.json").read_text()) for rank in range(4)]
    expected = before[0]["tensors"] | before[2]["tensors"]
    for path in (place.with_name(f"imported.1.{rank}.json") for place in places for rank in range(2)):
        started = json.loads(path.read_text())
        assert started["tensors"] == expected
        assert (started["position"], started["drawn"]) == ([1, [1, 1, 1]], before[0]["drawn"])


def export_and_import(checkpoints: Path, place: Path) -> None:
    """Export a whole state to a file and import it again. The folder above ``place`` names the type of the file."""
    target = place.with_name(f"all.{place.parent.name}")
    place.mkdir(parents=True)
    exported = checkpoint("export", "--all", "--checkpoints", checkpoints, "--to", target)
    assert exported.exit_code == 0, exported.stderr
    arguments = ("import", target, "--into", place / "checkpoints", "--step", STEP, "--run", "run")
    imported = checkpoint(*arguments)
    assert imported.exit_code == 0, imported.stderr
    assert checkpoint("verify", "--checkpoints", place / "checkpoints").exit_code == 0
    again = checkpoint(*arguments)
    assert "choose another --step or remove it" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--checkpoints", "/no/such"), "name the directory of a run's checkpoints with --checkpoints"),
        (("show", "--checkpoints", "{empty}"), "take one with `holdfast checkpoint now`"),
        (("show", 5, "--checkpoints", "{copy}"), "holds no checkpoint of step 5"),
        (("verify", 5, "--all", "--checkpoints", "{copy}"), "leave one out"),
        (("export", "--checkpoints", "{copy}", "--to", "{empty}/x.bin"), "end it with .safetensors or .pt"),
        (("export", "--checkpoints", "{copy}", "--to", "/no/such/x.pt"), "name a place with room"),
        (("import", "{empty}/x.pt", "--into", "{empty}", "--step", 1, "--run", "r"), "name a file that you can read"),
        (("import", LAYOUTS, "--into", "{empty}", "--step", 1, "--run", "r"), "give it the ending"),
        (("import", LAYOUTS, "--into", "{empty}", "--step", 10**23, "--run", "r"), "no run counts that far"),
    ],
)
def test_errors_are_one_line_with_the_fix(
    arguments: tuple[object, ...], message: str, copy: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = checkpoint(*(str(word).format(copy=copy, empty=empty) for word in arguments))
    assert result.exit_code != 0
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_export_of_a_damaged_checkpoint_names_the_tensor_and_leaves_no_file(copy: Path, tmp_path: Path) -> None:
    names = {tensor.entry.name: tensor for tensor in load_index(copy / "step-00000002", 0).tensors if tensor.is_stored}
    name = next(name for name in names if name.startswith("model/"))
    flip_a_byte(copy, 0, name)
    folder = tmp_path / "out"
    folder.mkdir()
    result = checkpoint("export", "--checkpoints", copy, "--to", folder / "model.pt")
    assert (result.exit_code, result.stderr.count("\n"), list(folder.iterdir())) == (1, 1, [])
    assert f"tensor {name} " in result.stderr
