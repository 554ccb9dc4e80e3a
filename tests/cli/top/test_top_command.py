"""The command around the screens: what it refuses, in one line each."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_cli.commands import top as command
from holdfast_cli.top.top_app import TopApp
from tests.cli.conftest import holdfast, run_record
from tests.cli.top.scenes import wide


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[TopApp]:
    """The apps that were opened, in what the command takes for a terminal."""
    found: list[TopApp] = []
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    monkeypatch.setattr(command, "_ended_with_terminal", contextlib.nullcontext)
    monkeypatch.setattr(TopApp, "run", lambda app: found.append(app))  # noqa: PLW0108 - a method
    return found


def test_without_a_terminal_it_says_what_to_use() -> None:
    result = holdfast("top")
    assert result.exit_code == 1
    assert result.stderr == "holdfast: holdfast top needs a terminal: use `holdfast status`, with --json for scripts\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["top"], 1, "holdfast: this needs textual: install it with `pip install 'holdfast-torch[top]'`\n"),
        (["top", "--help"], 0, ""),
    ],
)
def test_without_the_extra_it_says_how_to_get_it_and_still_has_a_help(
    arguments: list[str], code: int, said: str
) -> None:
    script = f"import sys; sys.modules['textual'] = None; sys.argv = ['holdfast', *{arguments}]; "
    script += "from holdfast_cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)


def test_it_fails_as_status_does(opened: list[TopApp], tmp_path: Path) -> None:
    for options in (
        ("--directory", str(tmp_path)),
        ("--directory", str(tmp_path), "--run", "none"),
        ("--control", str(tmp_path / "none.sock")),
    ):
        assert holdfast("top", *options).stderr == holdfast("status", *options).stderr != ""
        assert holdfast("top", *options).exit_code == 1
    assert opened == []


def test_one_run_is_opened_and_of_several_it_asks(opened: list[TopApp], tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        run_record(tmp_path / name, run=name, outcome="finished", created_unix_s=float(number + 1)).save()
        (tmp_path / name / "last-status.pb").write_bytes(wide().SerializeToString())
        result = holdfast("top", "--directory", str(tmp_path))
        assert result.exit_code == 0, result.stderr
    one, several = opened
    assert one._source is not None
    assert several._source is None
    assert [record.run for record in several._choices] == ["two", "one"]
    holdfast("top", "--directory", str(tmp_path), "--run", "one")
    assert opened[-1]._source is not None
