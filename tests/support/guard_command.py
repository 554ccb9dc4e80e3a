"""Calls ``holdfast guard`` in the process of a test, whose name and priority stay as they are."""

from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner, Result

from holdfast_cli.commands.services import guard_service
from holdfast_cli.main import app


def invoke_guard(*arguments: str | Path) -> Result:
    """Call the command. It must not rename the process or lower its priority: later tests would keep both."""
    with patch.multiple(guard_service, name_process=lambda _: None, _yield_to_others=lambda: None):
        return CliRunner().invoke(app, ["guard", *map(str, arguments)])
