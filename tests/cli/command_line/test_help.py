"""The help of every command: complete, readable in a narrow terminal, and equal to the record.

After a change of a help text, write the record anew: HOLDFAST_REWRITE_HELP=1 pytest tests/cli/command_line
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast_cli.main import app

RECORD = Path(__file__).parent / "help"
REWRITE = "HOLDFAST_REWRITE_HELP"
COLUMNS = 80
HEAVY = ("torch", "redis", "grpc", "numpy", "rich")


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the object of each command and each group, depth first."""

    def below(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield words, command
        for name, child in getattr(command, "commands", {}).items():
            yield from below((*words, name), child)

    return below((), typer.main.get_command(app))


COMMANDS = {" ".join(("holdfast", *words)): command for words, command in commands()}


def help_of(name: str, columns: int = COLUMNS) -> str:
    arguments = [*name.split()[1:], "--help"]
    result = CliRunner().invoke(app, arguments, prog_name="holdfast", env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_is_as_on_record(name: str) -> None:
    path = RECORD / f"{name.replace(' ', '-')}.txt"
    if os.environ.get(REWRITE):
        RECORD.mkdir(exist_ok=True)
        path.write_text(help_of(name))
    assert help_of(name) == path.read_text(), f"{REWRITE}=1 writes the record again"


def test_the_record_holds_the_commands_that_exist_and_no_others() -> None:
    assert {path.stem for path in RECORD.iterdir()} == {name.replace(" ", "-") for name in COMMANDS}


@pytest.mark.parametrize("columns", [COLUMNS, 200])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_80_columns(name: str, columns: int) -> None:
    assert max(len(line) for line in help_of(name, columns).splitlines()) <= COLUMNS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_every_name_and_every_word_that_is_declared(name: str) -> None:
    command, printed = COMMANDS[name], help_of(name).split()
    text = " ".join(printed)
    docstring = inspect.cleandoc(command.help or "").replace("\b", "")
    assert docstring, "a command without help"
    assert " ".join(docstring.split()) in text
    for parameter in command.params:
        assert parameter.help, parameter.name
        assert " ".join(parameter.help.split()) in text
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-"):
                assert any(word.rstrip(",") == option for word in printed), option
    for child, below in getattr(command, "commands", {}).items():
        assert child in printed
        assert " ".join(inspect.cleandoc(below.help or "").partition("\n\n")[0].split()) in text


def test_every_flag_with_a_value_says_in_capitals_or_words_what_it_takes() -> None:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            if not getattr(parameter, "is_flag", False):
                assert parameter.metavar, f"{name}: {parameter.name}"


def test_no_help_imports_what_only_the_work_needs() -> None:
    code = f"""
import json, sys
from typer.testing import CliRunner
from holdfast_cli.main import app
loaded = {{}}
for name in {[name.split()[1:] for name in COMMANDS]}:
    assert CliRunner().invoke(app, [*name, "--help"]).exit_code == 0
    loaded[" ".join(name)] = [module for module in {HEAVY} if module in sys.modules]
assert CliRunner().invoke(app, ["--version"]).exit_code == 0
loaded["--version"] = [module for module in {HEAVY} if module in sys.modules]
print(json.dumps(loaded))
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded = json.loads(printed)
    assert len(loaded) == len(COMMANDS) + 1
    assert {name: modules for name, modules in loaded.items() if modules} == {}


def test_the_version_is_that_of_the_distribution() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.output == f"holdfast {version('holdfast-torch')}\n"
