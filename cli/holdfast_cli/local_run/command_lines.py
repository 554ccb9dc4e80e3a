"""The command lines of the components of a local run."""

import sys
from pathlib import Path

from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.paths import RunPaths
from holdfast_proto.exit_codes import PREEMPTION_WARNINGS

HOLDFAST = (sys.executable, "-P", "-m", "holdfast_cli")
"""argv of the command. ``-P`` keeps the current folder off the module path: it may hold a ``redis.py`` of the user."""


def store_arguments(url: str, password_file: Path | None) -> list[str]:
    """Return the arguments that name Redis."""
    return ["--redis", url, *(["--redis-password-file", str(password_file)] if password_file else [])]


def _run_key_arguments(options: LocalRunOptions) -> list[str]:
    """Return the arguments that name the run's key, if it is not in the folder of the component."""
    return ["--run-key-file", str(options.run_key_file)] if options.run_key_file is not None else []


def daemon_command(paths: RunPaths, options: LocalRunOptions, store: list[str]) -> list[str]:
    """Return the argv of the daemon of a run. ``store``: from :func:`store_arguments`."""
    arguments: dict[str, Path | str] = {
        "--name": paths.node,
        "--directory": paths.directory,
        "--control": paths.control,
        "--console-address": options.console_address,
        "--console-port": str(options.console_port),
    }
    files = {
        "--console-cert-file": options.console_cert_file,
        "--console-key-file": options.console_key_file,
        "--console-client-ca": options.console_client_ca,
    }
    tls: dict[str, Path | str] = {flag: path.absolute() for flag, path in files.items() if path is not None}
    hosts = [word for host in options.console_hosts for word in ("--console-host", host)]
    console = [*hosts, *_flatten(tls)] if options.console else ["--no-console"]
    return [*HOLDFAST, "daemon", *_flatten(arguments), *console, *_run_key_arguments(options), *store]


def agent_command(paths: RunPaths, options: LocalRunOptions, store: list[str]) -> list[str]:
    """Return the argv of the agent of a run."""
    arguments: dict[str, Path | str] = {
        "--run": options.run,
        "--node": paths.node,
        "--directory": paths.directory,
        "--runtime-directory": paths.runtime,
        "--shm-directory": paths.memory,
        "--preemption-grace-s": f"{options.preemption_grace_s:g}",
        "--checkpoint-full-every": str(options.checkpoint_full_every),
        "--checkpoint-compression": options.checkpoint_compression,
    }
    if options.checkpoint_staging is not None:
        arguments["--checkpoint-staging"] = options.checkpoint_staging
    if options.topology is not None:
        arguments["--topology"] = options.topology
    if options.replica_address is not None:
        arguments["--replica-address"] = options.replica_address
    ignored = [number for number in PREEMPTION_WARNINGS if number not in options.preemption_warnings]
    return [
        *HOLDFAST,
        "agent",
        *_flatten(arguments),
        *(f"--no-stop-on-{each.name.lower()}" for each in ignored),
        *_run_key_arguments(options),
        *store,
    ]


def guard_command(paths: RunPaths, folder: Path) -> list[str]:
    """Return the argv of the guard of a run, which looks at ``folder``."""
    return [
        *HOLDFAST,
        "guard",
        "--json",
        *_flatten({"--metrics-port": "0", "--endpoint": paths.guard_endpoint}),
        "--",
        str(folder.absolute()),
    ]


def _flatten(arguments: dict[str, Path | str]) -> list[str]:
    return [str(word) for pair in arguments.items() for word in pair]
