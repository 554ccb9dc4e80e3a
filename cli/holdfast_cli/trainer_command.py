"""Checks the command of a rank before anything starts."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from holdfast_agent.processes.rank_command import launcher_problem, start_problem, torch_problem
from holdfast_cli.errors import SettingsError
from holdfast_hooks import ConfigurationError as RefusedConfiguration

_MODULE = ("-m", "holdfast_trainer")


def check_starts(command: Sequence[str]) -> None:
    """Raise SettingsError, in one line, if no rank on this machine could start ``command``."""
    problem = launcher_problem(command) or start_problem(command, Path.cwd()) or torch_problem()
    if problem:
        raise SettingsError(problem)


def check_launcher(command: Sequence[str]) -> None:
    """Raise SettingsError, in one line, if the launcher of ranks to be watched could not be started here."""
    problem = start_problem(command, Path.cwd())
    if problem:
        raise SettingsError(problem)


def check_published(command: Sequence[str]) -> None:
    """Raise SettingsError, in one line, if ``command`` is a launcher, which no node could run as a rank.

    The agents check whether it can be started: its files may exist on the nodes alone.
    """
    problem = launcher_problem(command, "holdfast publish --ranks-per-node N")
    if problem:
        raise SettingsError(problem)


def trainer_flags(command: Sequence[str]) -> Sequence[str] | None:
    """Return the flags that ``command`` gives our trainer; None: it starts another one."""
    pairs = list(pairwise(command))
    return command[pairs.index(_MODULE) + len(_MODULE) :] if _MODULE in pairs else None


def check_configuration(command: Sequence[str], *, ranks: int, is_here: bool) -> None:
    """Raise SettingsError, in one line, if ``ranks`` ranks of our trainer would refuse the flags of ``command``.

    ``is_here``: the ranks run on this machine, so that files and GPUs that it lacks are refused as well. Another
    trainer's command is not checked. Nor is ours where the packages that read its configuration are not installed: the
    ranks check it then.
    """
    flags = trainer_flags(command)
    if flags is None:
        return
    try:
        from holdfast_trainer import config, start_checks
    except ModuleNotFoundError:
        return

    try:
        settings = config.from_arguments(flags)
        config.expect_ranks(settings, ranks)
        if is_here:
            start_checks.expect_usable_here(settings)
    except RefusedConfiguration as error:
        raise SettingsError("; ".join(str(error).splitlines())) from None
