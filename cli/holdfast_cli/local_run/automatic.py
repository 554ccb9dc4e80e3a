"""What ``--auto`` needs of the command: the environment of ranks, and a run that has nothing to restore."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from holdfast_checkpoint.store.locations import is_url
from holdfast_cli.checkpoints.location import usable_steps
from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_hooks.auto.arming import python_path
from holdfast_proto.rank_context import ObservedNode

RESTORES_NOTHING = (
    "--auto: Holdfast saves and restores nothing; after a restart the script begins anew, or from its own checkpoint"
)


def rank_environment(node: ObservedNode) -> Mapping[str, str]:
    """Return the variables that a launcher must pass to its ranks."""
    variables = dict(node.to_environment())
    if node.auto:
        variables["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))
    return variables


def shell_line(node: ObservedNode) -> str:
    """Return the line for the launcher's shell. Under ``--auto`` it also puts our folder in front of PYTHONPATH."""
    if not node.auto:
        return node.shell_line()
    return f'{node.shell_line()} PYTHONPATH={shlex.quote(python_path(""))}"${{PYTHONPATH:+:$PYTHONPATH}}"'


def without_state(options: LocalRunOptions) -> LocalRunOptions:
    """Return the options of ``holdfast run --auto``: a stop waits for no checkpoint.

    Raises SettingsError if the run has checkpoints, which the script would not restore.
    """
    location = options.checkpoint_directory or str(options.directory / options.run / "checkpoints")
    steps = usable_steps(location, options.run) if is_url(location) or Path(location).is_dir() else []
    if steps and not options.from_scratch:
        raise SettingsError(
            f"--auto: {options.run} has a checkpoint of step {steps[-1]}, which --auto cannot restore: leave --auto out"
            " and have the script attach, or use another --run, or --from-scratch"
        )
    return replace(options, preemption_grace_s=0.0)
