"""Calls ``holdfast guard`` in the process of a test, whose priority stays as it is."""

from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner, Result

from holdfast_cli.commands import guard
from holdfast_cli.main import app


def invoke_guard(*arguments: str | Path) -> Result:
    """Call the command. It must not lower the priority of the process, which later tests would keep."""
    with patch.object(guard, "_yield_to_others", lambda: None):
        return CliRunner().invoke(app, ["guard", *map(str, arguments)])
