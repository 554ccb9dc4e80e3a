"""The command lines of components are understood by the commands."""

from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.local_run.command_lines import agent_command, daemon_command, guard_command
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.paths import RunPaths
from tests.cli.conftest import holdfast


@pytest.mark.parametrize("settings", [{}, {"stop_on_sigusr1": False, "stop_on_sigusr2": False, "console": False}])
def test_every_component_takes_the_flags_that_it_is_started_with(tmp_path: Path, settings: dict[str, Any]) -> None:
    options = LocalRunOptions(run="testing", command=("x",), **settings)
    paths = RunPaths(tmp_path, tmp_path, tmp_path, "local")
    store = ["--redis", "redis://localhost:1"]
    for command in (
        agent_command(paths, options, store),
        daemon_command(paths, options, store),
        guard_command(paths, tmp_path)[:-2],  # behind --, nothing is a flag
    ):
        words = command[command.index("holdfast_cli") + 1 :] if "holdfast_cli" in command else command
        result = holdfast(*words, "--help")  # it refuses a wrong flag before it prints its help
        assert result.exit_code == 0, result.output
