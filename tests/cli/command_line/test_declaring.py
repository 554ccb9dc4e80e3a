import importlib
import inspect
from typing import get_type_hints

import pytest

from holdfast_cli.command_line import declaring
from holdfast_cli.errors import CommandError
from holdfast_cli.main import ENTRIES, INCIDENTS, Entry

COMMANDS = "holdfast_cli.commands"


@pytest.mark.parametrize("entry", [*ENTRIES, INCIDENTS], ids=lambda entry: entry.name)
def test_the_work_of_every_command_exists_and_takes_its_flags(entry: Entry) -> None:
    function = declaring.load(f"{COMMANDS}.{entry.work}")
    (parameter,) = inspect.signature(function).parameters
    assert get_type_hints(function)[parameter] is entry.flags


def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_torch(_: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(importlib, "import_module", without_torch)
    with pytest.raises(CommandError, match="this needs torch: install the extra trainer of holdfast-torch"):
        declaring.load(f"{COMMANDS}.plan:plan")


def test_an_error_in_our_own_imports_is_not_taken_for_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError):
        declaring.load(f"{COMMANDS}.nothing:nothing")
