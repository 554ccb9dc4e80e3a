"""``holdfast stacks`` and ``holdfast profile`` on a daemon's answers: what is printed, and the exit codes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import Result

from holdfast_cli.control import ControlClient, ControlError
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from tests.cli.conftest import holdfast

FRAMES = [store.StackFrame(function="wait\x1b[2J", file="/x/c10d.py", line=7)]
STACK = store.RankStacks(rank=1, pid=9, threads=[store.ThreadFrames(id=9, name="MainThread", frames=[0])])
NONE = store.RankStacks(rank=2, problem="stacks: Permission denied")


def asked_daemon(*arguments: str) -> Result:
    return holdfast(*arguments, "--control", "none.sock", columns=200)


def stacks_are(monkeypatch: pytest.MonkeyPatch, *ranks: store.RankStacks) -> list[tuple[list[int], bool]]:
    """Let the daemon answer with the stacks of some ranks; return what it is asked for."""
    asked = []

    def take(self: ControlClient, ranks_asked: Sequence[int], *, native: bool) -> list[control.NodeStacks]:
        asked.append((list(ranks_asked), native))
        return [control.NodeStacks(node="a", taken=store.StacksTaken(frames=FRAMES, ranks=ranks))]

    monkeypatch.setattr(ControlClient, "take_stacks", take)
    return asked


def test_stacks_are_printed_without_what_steers_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stacks_are(monkeypatch, STACK, NONE)
    result = asked_daemon("stacks", "--rank", "1", "--rank", "2", "--native")
    assert (result.exit_code, asked) == (0, [([1, 2], True)])
    assert result.stdout.splitlines() == [
        "rank 2: no stacks: stacks: Permission denied",
        "",
        "rank 1, main thread (idle)",
        "    wait (c10d.py:7)",
    ]


def test_stacks_for_scripts_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = stacks_are(monkeypatch, STACK, NONE)
    result = asked_daemon("stacks", "--json", "--output", str(tmp_path / "new"))
    assert asked == [([], False)]
    first, second = json.loads(result.stdout)
    assert (first["rank"], first["threads"][0]["is_main"], second["problem"]) == (1, True, NONE.problem)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rank-00001.stack.txt"]
    (tmp_path / "file").touch()
    refused = asked_daemon("stacks", "--output", str(tmp_path / "file"))
    assert refused.exit_code == 1 and "name a folder that you can write to" in refused.stderr


def test_no_stack_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks_are(monkeypatch, NONE)
    result = asked_daemon("stacks")
    assert result.exit_code == 1
    assert "no stack could be taken: stacks: Permission denied" in result.stderr


def test_a_profile_is_printed_with_how_to_open_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    files = ["/p/rank-00003.steps-4-5.trace.json.gz", "/p/rank-00003.steps-4-5.memory.pickle.gz"]
    taken = store.ProfileTaken(rank=3, files=files, first_step=4, last_step=5)

    def take(self: ControlClient, rank: int, *, steps: int, patience_s: float) -> control.TakeProfileResponse:
        asked.append((rank, steps, patience_s))
        return control.TakeProfileResponse(node="a", taken=taken)

    monkeypatch.setattr(ControlClient, "take_profile", take)
    result = asked_daemon("profile", "--rank", "3", "--steps", "2", "--timeout", "9")
    assert (result.exit_code, asked) == (0, [(3, 2, 9.0)])
    lines = result.stdout.splitlines()
    assert lines[0] == "rank 3, steps 4 to 5, on a:"
    assert [line.strip() for line in lines[1::2]] == files
    assert "perfetto" in lines[2] and "memory_viz" in lines[4]
    answer = json.loads(asked_daemon("profile", "--rank", "3", "--json").stdout)
    assert answer == {"rank": 3, "node": "a", "first_step": 4, "last_step": 5, "files": files}


def test_a_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: ControlClient, rank: int, *, steps: int, patience_s: float) -> control.TakeProfileResponse:
        raise ControlError("the daemon refused: no step of rank 3 has ended", unreachable=False)

    monkeypatch.setattr(ControlClient, "take_profile", take)
    result = asked_daemon("profile", "--rank", "3")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "no step of rank 3 has ended" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--rank is missing"),
        (("--rank", "1", "--steps", "101"), "'--steps'"),
        (("--rank", "1", "--timeout", "0"), "'--timeout'"),
    ],
)
def test_flags_that_make_no_sense_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    result = asked_daemon("profile", *arguments)
    assert result.exit_code == 2
    assert reason in result.stderr
