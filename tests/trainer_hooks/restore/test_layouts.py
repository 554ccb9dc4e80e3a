"""Checkpoints of one layout, loaded in another. Real worlds are compared bit by bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

LAYOUTS = Path(__file__).parents[2] / "support" / "restored_layouts.py"
CASES = {
    "sharded": "dp4>dp2>other",
    "tensor-parallel": "tp2-dp2>dp4",
    "pipelined": "pp2>one",
    "replicated": "hsdp>hsdp>pp2-dp2",
}
World = list[dict[str, Any]]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[World]]:
    """Reports of the ranks, for every world of every case."""
    folder = tmp_path_factory.mktemp("layouts")
    ended = subprocess.run(
        [sys.executable, str(LAYOUTS), str(folder), *CASES.values()], capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-8000:]
    found = {}
    for name, case in CASES.items():
        numbers = range(case.count(">") + 1)
        found[name] = [
            [json.loads(path.read_text()) for path in sorted(folder.glob(f"{case}.{n}.*.json"))] for n in numbers
        ]
    return found


def tensors(world: World) -> dict[str, str]:
    """Return all full tensors by name. Ranks that have the same tensor must agree."""
    joined: dict[str, str] = {}
    for rank in world:
        for name, digest in rank["tensors"].items():
            assert joined.setdefault(name, digest) == digest, name
    return joined


@pytest.mark.parametrize(
    ("case", "loaded"),
    [("sharded", 1), ("tensor-parallel", 1), ("pipelined", 1), ("replicated", 1), ("replicated", 2)],
)
def test_model_and_optimizer_come_back_bit_by_bit(worlds: dict[str, list[World]], case: str, loaded: int) -> None:
    saved = tensors(worlds[case][0])
    assert len(saved) == 6 * 4  # six parameters; for each also step, exp_avg, exp_avg_sq
    assert tensors(worlds[case][loaded]) == saved


def test_what_dcp_saved_in_one_layout_it_loads_in_another(worlds: dict[str, list[World]]) -> None:
    for case in worlds.values():
        saved = {name: digest for name, digest in tensors(case[0]).items() if name.startswith("model/")}
        for world in (world for world in case[1:] if "refusal" not in world[0]):
            assert {name: digest for rank in world for name, digest in rank["dcp"].items()} == saved


def test_plain_values_come_back_on_every_rank(worlds: dict[str, list[World]]) -> None:
    for case in worlds.values():
        for rank in (rank for world in case[1:] for rank in world if "refusal" not in rank):
            assert rank["position"] == [1, [1, 1, 1]]
            assert rank["groups"] == [[0.05, 0.1], [0.02, 0.01]]
            assert rank["norms"] == {"norms": [2.5], "skips": 0, "skipped_total": 0}


def test_random_states_are_those_of_the_rank_modulo_the_saved_world(worlds: dict[str, list[World]]) -> None:
    for case in worlds.values():
        saved = [rank["drawn"] for rank in case[0]]
        assert len({tuple(drawn) for drawn in saved}) == len(saved)
        for world in (world for world in case[1:] if "refusal" not in world[0]):
            assert [rank["drawn"] for rank in world] == [saved[rank % len(saved)] for rank in range(len(world))]


def test_slots_serve_the_layout_that_wrote_them_and_are_emptied_in_another(worlds: dict[str, list[World]]) -> None:
    states = {name: [{rank.get("slot") for rank in world} for world in case[1:]] for name, case in worlds.items()}
    assert states["sharded"][0] == {""}
    assert states["tensor-parallel"] == [{"EMPTY"}]
    assert states["replicated"] == [{"COMPLETE"}, {"EMPTY"}]


def test_replicated_tensors_are_stored_once_and_ranks_share_the_work(worlds: dict[str, list[World]]) -> None:
    stored = [set(rank["stored"]) for rank in worlds["replicated"][0]]
    # Ranks 0 and 2 are replicas of each other, and so are 1 and 3.
    for one, other in ((stored[0], stored[2]), (stored[1], stored[3])):
        assert one
        assert other
        assert not one & other
        assert len(one | other) == 6 * 3
    norms = [{name for name in rank["stored"] if "norm" in name} for rank in worlds["tensor-parallel"][0]]
    assert not norms[0] & norms[1]
    assert norms[0] | norms[1] == norms[2] | norms[3] != set()


def test_checkpoint_of_another_model_is_refused_with_all_differences(worlds: dict[str, list[World]]) -> None:
    for rank in worlds["sharded"][2]:
        refusal = rank["refusal"]
        assert refusal.startswith(
            "cannot restore model/down.bias: the saved state has float32 (5,), this run float32 (4,); "
        )
        assert "; model/up.weight: the saved state has float32 (8, 6), this run bfloat16 (8, 6); " in refusal
        assert refusal.count("this run") == 10
        assert refusal.endswith("; and 1 more; use another run name, or another checkpoint directory")
