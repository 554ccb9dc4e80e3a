"""The whole runs that a change concerns."""

from pathlib import Path

import pytest

from tests.gate import affected

FILE = """
import pytest
pytestmark = pytest.mark.system

def test_left_out(): ...

@pytest.mark.gate
def test_in_the_gate(): ...

@pytest.mark.slice
def test_in_the_slice(): ...

@pytest.mark.soak
def test_of_hours(): ...

def helper(): ...
"""


@pytest.mark.parametrize(
    ("changed", "concerned"),
    [
        (["trainer/holdfast_trainer/main.py"], {"tests/trainer", "tests/chaos", "tests/examples"}),
        (["agent/holdfast_agent/node.py", "docs/top.md"], {"tests/chaos", "tests/multinode"}),
        (["tests/chaos/test_top.py"], {"tests/chaos/test_top.py"}),
        (["tests/chaos/paced/__main__.py"], {"tests/chaos/paced"}),
        (["tests/support/nodes.py"], set(affected.EVERYTHING)),
        (["tests/core/test_tick.py", "tests/trainer_hooks/test_hooks.py", "README.md"], set()),
    ],
)
def test_a_change_concerns_the_runs_that_go_through_it(changed: list[str], concerned: set[str]) -> None:
    assert affected.folders_of(changed) == concerned


def test_every_component_is_known() -> None:
    components = {path.parent.name for path in affected.ROOT.glob("*/holdfast_*") if path.is_dir()}
    assert components <= set(affected.WHOLE_RUNS_OF)


def test_those_that_the_gate_leaves_out_are_named(tmp_path: Path) -> None:
    (tmp_path / "tests" / "chaos").mkdir(parents=True)
    (tmp_path / "tests" / "chaos" / "test_a.py").write_text(FILE)
    (tmp_path / "tests" / "chaos" / "test_b.py").write_text(FILE.replace("pytestmark", "nothing"))
    wanted = ["tests/chaos/test_a.py::test_left_out"]
    assert affected.left_out(["tests/chaos"], tmp_path) == wanted
    assert affected.left_out(["tests/chaos/test_a.py", "tests/gone.py"], tmp_path) == wanted


def test_a_tree_that_this_clone_lacks_concerns_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affected, "changed_since", lambda _tree: None)
    head, count, *tests = affected.report()
    assert head.startswith("last whole green run: commit ")
    assert f": {len(tests)};" in count
    assert len(tests) == len(affected.left_out(affected.EVERYTHING)) > 0


@pytest.mark.parametrize("tree", ["0" * 40, "--output=here", "HEAD..HEAD", ""])
def test_what_is_no_commit_of_this_repository_is_refused(tree: str) -> None:
    assert affected.changed_since(tree) is None


def test_changes_are_those_since_a_commit_and_new_files() -> None:
    assert isinstance(affected.changed_since("HEAD"), list)


@pytest.mark.parametrize("text", ["", "{}", "[]", "<<<<<<< ours", '{"tree": 1, "commit": 2}'])
def test_a_record_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(affected, "ROOT", tmp_path)
    monkeypatch.setattr(affected, "RECORD", tmp_path / "whole_run.json")
    affected.RECORD.write_text(text)
    [line] = affected.report()
    assert line.startswith("the whole runs that were left out are not known (")
