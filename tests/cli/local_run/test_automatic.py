"""What --auto asks of the command before anything starts."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run import automatic
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.views.attachment import NEVER_ATTACHED, NO_AUTOMATIC_RANK, AttachmentWatch
from holdfast_cli.views.summary import interrupted_line
from holdfast_hooks.auto.arming import python_path
from holdfast_proto.rank_context import VARIABLE, ObservedNode
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import LIFE_EXITED, RankExit

Options = Callable[..., LocalRunOptions]


def node(*, auto: bool) -> ObservedNode:
    return ObservedNode(run="r", agent="unix:/agent.sock", black_boxes="/boxes", auto=auto)


def test_ranks_get_our_folder_first_and_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    path = automatic.rank_environment(node(auto=True))["PYTHONPATH"]
    first, *others = path.split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").is_file()
    assert others == ["/a", "/b"]
    assert python_path(path) == path
    assert list(automatic.rank_environment(node(auto=False))) == [VARIABLE]


@pytest.mark.parametrize(("before", "rest"), [("/a:/b", ["/a", "/b"]), ("", [])])
def test_the_shell_line_does_the_same(before: str, rest: list[str]) -> None:
    line = automatic.shell_line(node(auto=True))
    command = ["sh", "-c", f'{line}; printf "%s\\n%s" "${VARIABLE}" "$PYTHONPATH"']
    printed = subprocess.check_output(command, env={**os.environ, "PYTHONPATH": before}, text=True)
    context, path = printed.split("\n")
    assert {VARIABLE: context} == node(auto=True).to_environment()
    assert path.split(os.pathsep) == [python_path(""), *rest]
    assert automatic.shell_line(node(auto=False)) == node(auto=False).shell_line()


def test_a_stop_waits_for_no_checkpoint(options: Options) -> None:
    assert automatic.without_state(options(auto=True)).preemption_grace_s == 0.0


def test_checkpoints_that_nothing_would_restore_are_named(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "usable_steps", lambda location, run: [100, 200])
    kept = options(auto=True)
    (kept.directory / kept.run / "checkpoints").mkdir(parents=True)
    with pytest.raises(SettingsError, match="has a checkpoint of step 200, which --auto cannot restore"):
        automatic.without_state(kept)
    automatic.without_state(options(auto=True, from_scratch=True))


@pytest.mark.parametrize(("given", "flag"), [({"adopt": True}, "--adopt"), ({"continue_from": 5}, "--continue-from")])
def test_flags_that_ask_for_a_state_are_refused(options: Options, given: dict[str, object], flag: str) -> None:
    with pytest.raises(SettingsError, match=f"--auto restores nothing, and {flag} asks for it"):
        options(auto=True, **given)


@pytest.mark.parametrize(("auto", "line"), [(False, NEVER_ATTACHED), (True, NO_AUTOMATIC_RANK)])
def test_the_end_of_a_run_says_why_no_rank_has_attached(auto: bool, line: str) -> None:
    watch = AttachmentWatch(auto=auto)
    gone = RankView(life=LIFE_EXITED, exit=RankExit(code=0, never_attached=True))
    watch.see(RunStatus(newest_step=-1, ranks=[gone]))
    assert watch.line() == line
    assert "--auto" in line


def test_an_interrupted_run_does_not_say_what_the_script_has_lost(tmp_path: Path) -> None:
    status = RunStatus(run="r", newest_step=26)
    line = interrupted_line(status, str(tmp_path), auto=True)
    assert line == "r stopped after step 26; Holdfast has saved nothing of it"
    assert "27 steps are lost" in interrupted_line(status, str(tmp_path))
