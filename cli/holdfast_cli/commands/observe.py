"""``holdfast observe``: watches a run that another launcher starts."""

import json
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import typer
from rich.console import Console

from holdfast_cli.control import ControlError
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.flags.start_flags import ObserveFlags
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.automatic import rank_environment, shell_line
from holdfast_cli.local_run.launcher_watch import Launcher, LauncherOnStdin, LauncherWatch, observed_node
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.notify_spec import check_files
from holdfast_cli.local_run.requeue_verdict import requeue_code
from holdfast_cli.local_run.run_options import LocalRunOptions, local_run_options
from holdfast_cli.observed_nodes.node_observation import NodeObservation
from holdfast_cli.observed_nodes.per_rank import NodeRanks, become_rank
from holdfast_cli.run_folder.paths import claim_dated_name, dated_name
from holdfast_cli.settings.resolving import Resolved, resolve
from holdfast_cli.settings.schema import ExitCodeName, ModeName, settings_of
from holdfast_cli.settings.setting import FileSection
from holdfast_cli.trainer_command import check_launcher
from holdfast_cli.views.attachment import FIVE_LINES, NO_AUTOMATIC_RANK
from holdfast_cli.views.console_address import start_lines
from holdfast_cli.views.display import LineDisplay
from holdfast_cli.views.output import lasting_output
from holdfast_cli.views.run_view import Surroundings
from holdfast_proto.exit_codes import PREEMPTION_WARNINGS, ExitCode
from holdfast_proto.keys import check_run_name

Begin = Callable[[Mapping[str, str]], Launcher | LauncherOnStdin]
"""Begins to follow a launcher, whose ranks need these variables in their environment."""

NO_RANK = (
    "no rank has said hello: does the training script call holdfast_hooks.attach()?"
    f" `--auto` attaches without it, and {FIVE_LINES}"
)


def observe(flags: ObserveFlags) -> None:
    """Watch until the launcher, or the run, has ended. Exits with the launcher's code, or as --exit-code says."""
    resolved = resolve("observe", flags.given, (), flags.config)
    name = resolved.settings.run
    options = local_run_options(
        resolved,
        run=dated_name() if name is None else name,
        ranks=0,
        preemption_grace_s=0.0,
        mode=ModeName.OBSERVE,
        **({} if resolved.settings.restore else _without_state(flags)),
    )
    check_files(resolved)
    node = _node(resolved, flags)
    if options.exit_code == ExitCodeName.VERDICT and not flags.launcher:
        raise SettingsError("--exit-code verdict needs a launcher, whose end it judges: give its command after --")
    if options.exit_code == ExitCodeName.VERDICT and flags.per_rank:
        raise SettingsError("--exit-code verdict has no effect with --per-rank: each rank ends with its own code")
    if flags.launcher:
        check_launcher(flags.launcher)
    if flags.per_rank:
        assert node is not None
        become_rank(flags.launcher or [], node, options, partial(_observe_ranks, options, node))
    if node is None and name is None:  # a launcher that is refused leaves no folder behind
        options = replace(options, run=claim_dated_name(options.directory, share=options.share_group))
    launcher = flags.launcher or []
    begin: Begin | None = partial(Launcher, launcher) if launcher else None
    if flags.launcher_stdin:
        begin = _on_stdin
    with lasting_output():
        code = _observe_here(options, begin) if node is None else _observe_node(options, node, begin)
    raise typer.Exit(code)


def _without_state(flags: ObserveFlags) -> dict[str, Any]:
    """Return the settings of a run whose state is neither saved nor restored. The file may have others, for other runs.

    Raises SettingsError if a flag asks for what only --restore does.
    """
    settings: dict[str, Any] = {}
    for field, setting in settings_of("observe"):
        is_of_state = setting.section in (FileSection.CHECKPOINTS, FileSection.SNAPSHOTS) and field != "guard"
        if is_of_state or field == "loss_leave_out":
            if field in flags.given:
                raise SettingsError(f"{setting.shown} has no effect without --restore, which saves the ranks' state")
            settings[field] = setting.default
    return {**settings, "checkpoint_every": 0, "snapshot_every": 0, "replicate_every_s": 0.0}


def _node(resolved: Resolved, flags: ObserveFlags) -> str | None:
    """Return the name of this node in a run over several nodes; None if the run is on this machine alone.

    Raises SettingsError if a setting is missing without which the nodes do not find each other.
    """
    settings = resolved.settings
    if settings.nodes == 1 and not flags.per_rank:
        if flags.node is not None:
            raise SettingsError("--node has no effect without --nodes: leave it out, or give the number of nodes")
        return None
    if flags.per_rank and not flags.launcher:
        raise SettingsError("--per-rank needs the command of one rank after --")
    cause = "--per-rank" if flags.per_rank else f"--nodes {settings.nodes}"
    if settings.redis_url is None:
        raise SettingsError(
            f"{cause} needs --redis URL, a Redis that all nodes reach: start one with a password on"
            ' one of them (docs/multinode.md, "A Redis for all nodes")'
        )
    if settings.run is None:
        raise SettingsError(f"{cause} needs --run NAME: the same name on all nodes")
    node = flags.node or socket.gethostname()
    try:
        return check_run_name(node)
    except ValueError:
        raise SettingsError(
            f"--node {node[:80]!r}: use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"
        ) from None


def _on_stdin(environment: Mapping[str, str]) -> LauncherOnStdin:
    """Return the launcher that has started us, and print what its ranks need in their environment, as JSON."""
    print(json.dumps(dict(environment)), flush=True)
    return LauncherOnStdin()


def _observe_here(options: LocalRunOptions, begin: Begin | None) -> int:
    with Interruption(warnings=PREEMPTION_WARNINGS) as interruption, LocalRun(options, interruption) as local:
        return _watch(local, interruption, begin, start_lines(local.paths.control, sys.stderr))


def _observe_node(options: LocalRunOptions, node: str, begin: Begin | None) -> int:
    with (
        Interruption(warnings=PREEMPTION_WARNINGS) as interruption,
        NodeObservation(options, node, interruption, say=_complain) as here,
    ):
        return _watch(here, interruption, begin, [])


def _observe_ranks(options: LocalRunOptions, node: str, ranks: NodeRanks) -> None:
    """Watch the ranks of this node that other processes start, until they are gone. The ranks never notice."""
    try:
        with (
            Interruption(warnings=PREEMPTION_WARNINGS) as interruption,
            NodeObservation(options, node, interruption, ranks.runtime, say=_complain) as here,
        ):
            watch = _launcher_watch(here, interruption)
            watch.until_gone(ranks.any_alive)
            if not watch.has_met_ranks:
                _complain(f"node {node}: {NO_AUTOMATIC_RANK if options.auto else NO_RANK}")
    except CommandError as error:
        _complain(f"{error}: the ranks of node {node} are not watched")
    except Exception as error:  # noqa: BLE001 (nobody else is left to report it, and the ranks must not notice)
        _complain(f"unexpected error, the ranks of node {node} are not watched: {error!r}")
    finally:
        ranks.remove()


def _watch(
    watched: LocalRun | NodeObservation, interruption: Interruption, begin: Begin | None, first_lines: list[str]
) -> int:
    for line in first_lines:
        print(line, file=sys.stderr, flush=True)
    observation = _launcher_watch(watched, interruption)
    options = watched.options
    paths = watched.paths
    node = observed_node(options, paths.node, paths.directory, paths.runtime)
    code = 0
    if begin is not None:
        code = observation.until_exit(begin(rank_environment(node)))
        if options.exit_code == ExitCodeName.VERDICT and not interruption.count:
            code = _judged(watched, code)
    else:
        print(shell_line(node), flush=True)
        observation.until_end()
    is_unneeded = begin is _on_stdin and code == 0  # a spare of torchrun
    if not observation.has_met_ranks and not is_unneeded:
        _complain(NO_AUTOMATIC_RANK if options.auto else NO_RANK)
    return code


def _launcher_watch(watched: LocalRun | NodeObservation, interruption: Interruption) -> LauncherWatch:
    # On stderr, and never drawn in place: the launcher's own output goes to the same terminal.
    display = LineDisplay(Console(stderr=True))
    return LauncherWatch(
        watched,
        interruption,
        show=lambda seen: display.update(seen, Surroundings(notes=[*watched.notes(), *seen.refused_ranks])),
        complain=_complain,
    )


def _judged(watched: LocalRun | NodeObservation, launcher_code: int) -> int:
    """Return the exit code that says whether a requeue helps, and print why. Whoever sends a signal knows himself."""
    status = watched.last_status
    if status is None:
        return launcher_code
    try:
        incidents = watched.incidents()
    except (ControlError, CommandError) as error:
        _complain(f"the launcher's exit code {launcher_code} stands: {error}")
        return launcher_code
    ends_badly = status.HasField("nonfinite_since")
    code, reason = requeue_code(launcher_code, status.generation, incidents, ends_badly=ends_badly)
    if reason:
        advice = "a requeue may help" if code == ExitCode.REQUEUE else "do not requeue"
        _complain(f"exit code {code} ({advice}), the launcher's is {launcher_code}: {reason}")
    return code


def _complain(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr, flush=True)
