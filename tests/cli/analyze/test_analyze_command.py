"""``holdfast analyze`` as people and scripts use it."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast_cli.main import app
from tests.support.recorder_documents import Document

WORLD = (0, 1, 2, 3)


def holdfast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in arguments])


def answer(*arguments: str | Path) -> dict[str, Any]:
    """Return the object that scripts get: the only line."""
    result = holdfast("analyze", *arguments, "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def loop(calls: int = 3) -> Document:
    document = Document({"0": WORLD})
    for _ in range(calls):
        document.call()
    return document


def write(folder: Path, documents: dict[int, Document]) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, document in documents.items():
        (folder / f"rank-{rank}.json").write_text(json.dumps(document.document()))
    return folder


@pytest.fixture
def late(tmp_path: Path) -> Path:
    """Rank 2 has not come to call 4."""
    return write(tmp_path / "late", {rank: loop() if rank == 2 else loop().pending() for rank in WORLD})


def test_the_text_has_the_verdict_first_and_then_why_what_to_do_the_basis_and_the_waits(late: Path) -> None:
    result = holdfast("analyze", late)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "rank 2 has not made call 4 (all_reduce) of group 0, in which ranks 0, 1 and 3 wait (confidence: high)",
        "  why: rank 2 has no call of its own pending, and its newest call there is 3",
        "  next: look at the stack and the log of rank 2: what keeps the host from this call",
        "based on: 4 dumps (format 2.10); no times of the devices (TORCH_NCCL_ENABLE_TIMING=1 records them)",
        "who waits for whom:",
        "  ranks 0, 1 and 3 in call 4 (all_reduce) of group 0: for rank 2",
    ]


def test_scripts_get_one_object(late: Path) -> None:
    found = answer(late)
    waits = found.pop("waits")
    assert [(wait["rank"], wait["awaited"], wait["certain"]) for wait in waits] == [
        (0, 2, True),
        (1, 2, True),
        (3, 2, True),
    ]
    (cause,) = found.pop("causes")
    assert (cause["kind"], cause["ranks"], cause["members"]) == ("missing_rank", [2], [0, 1, 2, 3])
    assert found == {
        "kind": "missing_rank",
        "culprits": [2],
        "group": "0",
        "op": "all_reduce",
        "seq": 4,
        "confidence": "high",
        "message": "rank 2 has not made call 4 (all_reduce) of group 0, in which ranks 0, 1 and 3 wait",
        "next": "look at the stack and the log of rank 2: what keeps the host from this call",
        "suspects": [],
        "dumps": 4,
        "ranks_without_dump": [],
        "bad_entries": 0,
        "refused": [],
    }


def test_pickles_and_json_give_the_same_answer(late: Path, tmp_path: Path) -> None:
    other = tmp_path / "pickles"
    other.mkdir()
    for path in late.iterdir():
        data = pickle.dumps(json.loads(path.read_text()), protocol=2)
        (other / f"comm_lib_trace_rank_{path.stem.removeprefix('rank-')}").write_bytes(data)
    assert answer(other) == answer(late)


def test_a_job_in_which_nobody_waits_has_the_same_keys(tmp_path: Path, late: Path) -> None:
    found = answer(write(tmp_path / "fine", {rank: loop() for rank in WORLD}))
    assert found.keys() == answer(late).keys()
    assert (found["kind"], found["culprits"], found["group"], found["waits"]) == ("nothing_pending", [], None, [])
    assert [cause["kind"] for cause in found["causes"]] == ["nothing_pending"]


def test_both_sides_of_a_mismatch_are_in_the_object(tmp_path: Path) -> None:
    documents = {rank: loop().pending("broadcast" if rank > 1 else "all_reduce") for rank in WORLD}
    found = answer(write(tmp_path / "apart", documents))
    assert (found["kind"], found["culprits"], found["suspects"]) == ("mismatched_call", [], [0, 1, 2, 3])
    assert found["causes"][0]["sides"] == [
        {"call": "all_reduce of 4 elements of type Float", "ranks": [0, 1]},
        {"call": "broadcast of 4 elements of type Float", "ranks": [2, 3]},
    ]


def test_a_rank_that_died_is_given_by_hand(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", {rank: loop().pending() for rank in WORLD if rank != 2})
    assert answer(folder)["kind"] == "unknown"
    found = answer(folder, "--dead", "2")
    assert (found["kind"], found["culprits"]) == ("dead_rank", [2])


def test_ranks_that_moved_since_earlier_dumps_are_not_stuck(late: Path, tmp_path: Path) -> None:
    before = write(tmp_path / "before", {rank: loop(2).pending() for rank in WORLD})
    found = answer(late, "--earlier", before)
    assert (found["kind"], found["culprits"], found["suspects"]) == ("moving", [], [0, 1, 2, 3])


def test_equal_earlier_dumps_change_nothing(late: Path, tmp_path: Path) -> None:
    before = write(tmp_path / "before", {rank: loop() if rank == 2 else loop().pending() for rank in WORLD})
    assert answer(late, "--earlier", before) == answer(late)


def test_earlier_dumps_may_be_in_a_folder_inside(late: Path) -> None:
    write(late / "before", {rank: loop(2).pending() for rank in WORLD})
    found = answer(late, "--earlier", late / "before")
    assert (found["kind"], found["refused"]) == ("moving", [])


def test_one_rank_that_moved_is_enough(late: Path, tmp_path: Path) -> None:
    """The others wait for it, and it makes calls."""
    before = write(tmp_path / "before", {rank: loop().pending() if rank != 2 else loop(2) for rank in WORLD})
    found = answer(late, "--earlier", before)
    assert (found["kind"], found["suspects"]) == ("moving", [2])
    text = holdfast("analyze", late, "--earlier", before).stdout
    assert text.startswith("rank 2 moved between the two sets of dumps, which therefore show no hang (confidence: ")


def test_earlier_dumps_of_other_ranks_are_refused(late: Path, tmp_path: Path) -> None:
    before = write(tmp_path / "before", {9: Document({"0": range(10)}).call()})
    result = holdfast("analyze", late, "--earlier", before)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has no dump of a rank that" in result.stderr


def test_earlier_dumps_of_another_form_are_no_movement(late: Path, tmp_path: Path) -> None:
    """Dumps of the pending calls alone: each has fewer entries than the full one of the same moment."""
    before = tmp_path / "before"
    before.mkdir()
    for path in late.iterdir():
        written = json.loads(path.read_text())
        written["entries"] = [entry for entry in written["entries"] if not entry["retired"]]
        (before / path.name).write_text(json.dumps(written))
    result = holdfast("analyze", late, "--earlier", before)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "was dumped in another way than" in result.stderr
    (before / "rank-0.json").write_text((late / "rank-0.json").read_text())
    found = answer(late, "--earlier", before)
    assert (found["kind"], found["culprits"]) == ("missing_rank", [2])
    assert found["refused"] == ["earlier dumps of ranks 1, 2 and 3: they were made in another way than the newer ones"]


def test_earlier_dumps_must_be_apart_from_the_newer_ones(late: Path) -> None:
    for before in (late, late.parent):
        result = holdfast("analyze", late, "--earlier", before)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "holds the newer dumps too: name a folder of earlier dumps alone" in result.stderr


def test_the_stacks_next_to_the_dumps_are_read(late: Path) -> None:
    (late / "rank-2.stack.txt").write_text(
        'Thread 7 (idle): "MainThread"\n    new_group (torch/distributed/distributed_c10d.py:9)\n'
    )
    found = answer(late)
    assert (found["kind"], found["culprits"], found["suspects"]) == ("unknown", [], [])


@pytest.mark.parametrize("size", [1, 3])
def test_a_world_that_is_too_small_is_refused(late: Path, size: int) -> None:
    result = holdfast("analyze", late, "--world-size", str(size))
    assert result.exit_code == 2
    assert f"--world-size {size} is too small: there is a rank 3" in result.stderr


def test_a_dead_rank_that_the_job_does_not_have_is_refused(late: Path) -> None:
    result = holdfast("analyze", late, "--dead", "7", "--dead", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--dead 7: the dumps name 4 ranks, and this is none of them" in result.stderr


def test_a_larger_world_has_ranks_without_a_dump(late: Path) -> None:
    found = answer(late, "--world-size", "5")
    assert found["ranks_without_dump"] == [4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "is no folder: name the one that holds one dump for each rank"),
        (lambda folder: folder.touch(), "is no folder: name the one that holds one dump for each rank"),
        (lambda folder: folder.mkdir(), "holds no dump of a Flight Recorder: torch writes them where"),
    ],
)
def test_a_folder_that_cannot_be_judged_is_one_line_and_exit_code_1(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "dumps")
    result = holdfast("analyze", tmp_path / "dumps")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_with_code_is_named_and_does_not_run(late: Path, tmp_path: Path) -> None:
    (late / "rank-3.json").unlink()
    (late / "nccl_trace_rank_3").write_bytes(pickle.dumps({"entries": [Runs(tmp_path / "ran")]}, protocol=2))
    found = answer(late)
    assert found["refused"] == [
        "nccl_trace_rank_3: it refers to posix.mkdir, and a recorder's dump holds plain data only"
    ]
    assert found["ranks_without_dump"] == [3] and not (tmp_path / "ran").exists()
    assert "left out nccl_trace_rank_3: it refers to posix.mkdir" in holdfast("analyze", late).stdout


def test_many_waits_are_counted_in_the_text_and_complete_in_the_object(tmp_path: Path) -> None:
    pairs = {f"pair{rank}": (rank, 50) for rank in range(30)}
    documents = {rank: Document({f"pair{rank}": (rank, 50)}).pending(group=f"pair{rank}") for rank in range(30)}
    folder = write(tmp_path / "dumps", documents | {50: Document(pairs)})
    assert "  and 10 more: --json has all" in holdfast("analyze", folder).stdout.splitlines()
    assert len(answer(folder)["waits"]) == 30


def test_dumps_of_torchs_hook_say_that_they_cannot_show_who_hangs(tmp_path: Path) -> None:
    """As torch 2.14.1 writes them for nccl2: all calls are retired, although one of them hangs."""
    made = Document({"0": (0, 1)}, backend="c10d").call("allreduce", state="scheduled", retired=True)
    folder = write(tmp_path / "dumps", {0: made, 1: made})
    why = "the recorder of ranks 0 and 1 ends calls when they are made, not when they complete, so it cannot show"
    why += " who hangs"
    lines = holdfast("analyze", folder).stdout.splitlines()
    assert lines[0].startswith("no recorder shows a call that others wait in")
    assert lines[1] == f"  why: {why}"
    assert [line.count("cannot show who hangs") for line in lines if line.startswith("based on")] == [1]
    found = answer(folder)
    assert (found["kind"], found["culprits"], found["causes"][0]["why"]) == ("nothing_pending", [], [why])


def test_dumps_of_torchcomms_are_left_out_because_their_numbers_are_not_of_groups(late: Path) -> None:
    (late / "rank-3.json").write_text(json.dumps(loop().pending().of_torchcomms()))
    found = answer(late)
    (refused,) = found["refused"]
    assert refused.startswith("rank-3.json: it is of TorchComms' recorder") and found["ranks_without_dump"] == [3]
