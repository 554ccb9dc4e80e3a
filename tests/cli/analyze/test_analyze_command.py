"""``holdfast analyze`` as people and scripts use it."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import holdfast
from tests.support.recorder_documents import Document

WORLD = (0, 1, 2, 3)


def answer(*arguments: str | Path) -> dict[str, Any]:
    """Return the object that scripts get: the only line."""
    result = holdfast("analyze", *arguments, "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    return dict(json.loads(line))


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
    waits = [(wait["rank"], wait["awaited"], wait["certain"]) for wait in found.pop("waits")]
    assert waits == [(0, 2, True), (1, 2, True), (3, 2, True)]
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
        "contradictions": [],
        "bad_entries": 0,
        "refused": [],
    }


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


def test_a_dump_of_an_earlier_attempt_is_left_out_and_named(tmp_path: Path) -> None:
    late = write(tmp_path, {0: loop(2), **{rank: loop(20).pending() for rank in (1, 3)}, 2: loop(20)})
    found = answer(late)
    (one,) = found["contradictions"]
    assert (one["rank"], found["culprits"], found["confidence"]) == (0, [2], "low")
    line = f"  left out the dump of rank 0: {one['why']}"
    assert line.endswith("ranks 1, 2 and 3 completed call 20 of group 0, and rank 0 has not made it: its dump is older")
    assert line in holdfast("analyze", late).stdout.splitlines()


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


MAIN = 'Thread 7 (idle): "MainThread"\n'
OWN_CODE = MAIN + "    step (train.py:9)\n"
NATIVE = MAIN + "    step (train.py:9)\n    start_thread (libc.so.6)\n"


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """Ranks 2 and 3 left no dump."""
    return write(tmp_path / "lost", {rank: loop().pending() for rank in (0, 1)})


def stacks(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.stack.txt").write_text(text)
    return folder


def test_equal_causes_are_one(lost: Path) -> None:
    """Each lost rank alone may be the cause."""
    found = answer(lost)
    assert [(cause["kind"], cause["suspects"]) for cause in found["causes"]] == [("unknown", [2, 3])]
    lines = holdfast("analyze", lost).stdout.splitlines()
    assert [line.count("the recorders do not show who holds up") for line in lines].count(1) == 1
    assert "  next: take the stacks of ranks 2 and 3 (py-spy dump --native)" in lines
    assert any("; no readable dump of ranks 2 and 3; " in line for line in lines)


def test_the_next_step_asks_for_no_stack_that_is_there(lost: Path) -> None:
    found = answer(stacks(lost, rank_3=OWN_CODE))
    assert found["next"] == found["causes"][0]["next"] == "take the stacks of rank 2 (py-spy dump --native)"
    shown = (
        "the stack of rank 3 is there, and shows its own code, or a wait for its device there, which does not decide"
    )
    assert found["causes"][0]["why"][-1] == shown
    assert f"  why: {shown}" in holdfast("analyze", lost).stdout.splitlines()


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (OWN_CODE, "take the stacks of ranks 2 and 3 again, with py-spy dump --native: Python frames hide waits"),
        (NATIVE, "read the stacks and the logs of ranks 2 and 3: what do they wait for"),
    ],
)
def test_the_next_step_with_all_stacks_is_another_one(lost: Path, text: str, step: str) -> None:
    found = answer(stacks(lost, rank_2=text, rank_3=text))
    assert (found["kind"], found["suspects"], found["next"]) == ("unknown", [2, 3], step)


def test_a_stack_that_decides_names_a_rank_without_a_dump(lost: Path) -> None:
    loads = MAIN + "    read (data.py:3)\n    fetch (torch/utils/data/_utils/fetch.py:52)\n"
    found = answer(stacks(lost, rank_3=loads))
    assert (found["kind"], found["culprits"]) == ("missing_rank", [3])


def test_the_stack_of_a_named_rank_is_shown_and_not_asked_for(late: Path) -> None:
    before = answer(late)
    (culprit,) = before["culprits"]
    waits = "    wait (/usr/lib/python3.11/threading.py:320)\n    read_shard (data/shards.py:88)\n"
    found = answer(stacks(late, **{f"rank_{culprit}": f"{MAIN}{waits}    step (train.py:9)\n"}))
    assert found["culprits"] == before["culprits"]
    shown = f"the stack of rank {culprit} is there, and shows read_shard (data/shards.py)"
    assert found["causes"][0]["why"][-1] == shown
    assert found["next"] == f"read this stack and the log of rank {culprit}: what keeps the host from this call"


def test_an_empty_stack_is_left_out_and_counts_for_nothing(lost: Path) -> None:
    before = answer(lost)
    found = answer(stacks(lost, rank_3=""))
    assert (found["next"], found["suspects"]) == (before["next"], before["suspects"])
    text = holdfast("analyze", lost).stdout
    assert "stacks of rank 3" not in text and "  left out rank_3.stack.txt: it shows no stack of a main thread" in text


def test_where_nothing_is_pending_the_stacks_that_are_there_are_to_be_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "fine", {rank: loop() for rank in WORLD})
    assert answer(folder)["next"].startswith("take the stacks of all ranks")
    stacks(folder, rank_0=OWN_CODE, rank_1=OWN_CODE)
    assert answer(folder)["next"] == "take the stacks of ranks 2 and 3, too (py-spy dump --native)"
    stacks(folder, rank_2=OWN_CODE, rank_3=OWN_CODE)
    assert answer(folder)["next"] == "read the stacks and the logs of ranks 0, 1, 2 and 3: what do they wait for"


def test_a_text_of_a_dump_steers_no_terminal_and_adds_no_line(late: Path) -> None:
    written = json.loads((late / "rank-3.json").read_text())
    for entry in written["entries"]:
        entry["profiling_name"] = "\x1b[31mnccl\nrank 0 is dead: evil"
    (late / "rank-3.json").write_text(json.dumps(written))
    output = holdfast("analyze", late).stdout
    assert "\x1b" not in output and not any(line.startswith("rank 0 is dead") for line in output.splitlines())
    assert "?[31mnccl?rank 0 is dead" in output
    assert answer(late)["refused"][0].startswith("rank-3.json: it holds calls of ?[31mnccl?rank 0 is dead")


def test_a_larger_world_has_ranks_without_a_dump(late: Path) -> None:
    found = answer(late, "--world-size", "5")
    assert found["ranks_without_dump"] == [4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--world-size", "1"), "--world-size 1 is too small: there is a rank 3"),
        (("--world-size", "3"), "--world-size 3 is too small: there is a rank 3"),
        (("--dead", "7", "--dead", "1"), "--dead 7: the dumps name 4 ranks, and this is none of them"),
        (("--dead", "-1"), "--dead"),
        (("--earlier", "{late}"), "holds the newer dumps too: name a folder of earlier dumps alone"),
        (("--earlier", "{late}/.."), "holds the newer dumps too: name a folder of earlier dumps alone"),
    ],
)
def test_wrong_arguments_end_with_2_and_print_nothing_for_scripts(
    late: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = holdfast("analyze", late, "--json", *(word.format(late=late) for word in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_folder_that_cannot_be_judged_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    for arguments in ([], ["--json"]):
        result = holdfast("analyze", tmp_path / "none", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "is no folder: name the one that" in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_pickle_with_code_is_named_and_its_rank_has_no_dump(late: Path) -> None:
    (late / "rank-3.json").unlink()
    (late / "nccl_trace_rank_3").write_bytes(pickle.dumps({"entries": [os.mkdir]}, protocol=2))
    found = answer(late)
    refused = "nccl_trace_rank_3: it refers to posix.mkdir, and a recorder's dump holds plain data only"
    assert (found["refused"], found["ranks_without_dump"]) == ([refused], [3])
    assert f"  left out {refused}" in holdfast("analyze", late).stdout.splitlines()


def test_many_waits_are_counted_in_the_text_and_complete_in_the_object(tmp_path: Path) -> None:
    pairs = {f"pair{rank}": (rank, 50) for rank in range(30)}
    documents = {rank: Document({f"pair{rank}": (rank, 50)}).pending(group=f"pair{rank}") for rank in range(30)}
    folder = write(tmp_path / "dumps", documents | {50: Document(pairs)})
    assert "  and 10 more: --json has all" in holdfast("analyze", folder).stdout.splitlines()
    assert len(answer(folder)["waits"]) == 30


def test_dumps_of_torchs_hook_say_that_they_cannot_show_who_hangs(tmp_path: Path) -> None:
    """As torch 2.14.1 writes them for nccl2: all calls are retired, although one of them hangs."""
    made = Document({"0": (0, 1)}, backend="c10d").call("allreduce", state="scheduled", retired=True)
    lines = holdfast("analyze", write(tmp_path / "dumps", {0: made, 1: made})).stdout.splitlines()
    assert lines[0].startswith("no recorder shows for sure a call that others wait in")
    assert lines[1] == (
        "  why: the recorder of ranks 0 and 1 ends calls when they are made, not when they complete, "
        "so it cannot show who hangs"
    )
    assert [line.count("cannot show who hangs") for line in lines if line.startswith("based on")] == [1]
