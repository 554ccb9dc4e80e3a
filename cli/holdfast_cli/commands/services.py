"""``holdfast agent`` and ``holdfast daemon``: the long-lived processes, for those who place them themselves."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from holdfast_checkpoint.codec.registry import Compression
from holdfast_cli.commands.options import (
    DEFAULT_PREEMPTION_GRACE_S,
    DEFAULT_SHM_DIRECTORY,
    CheckpointCompression,
    CheckpointFullEvery,
    CheckpointStaging,
    MetricsAddress,
    MetricsPort,
    PreemptionGrace,
    RedisPasswordFile,
    RequiredRedis,
    ShmDirectory,
)
from holdfast_cli.errors import ConfigurationError


def agent(
    *,
    run: Annotated[str, typer.Option(help="Name of the run to serve.")],
    redis: RequiredRedis,
    directory: Annotated[Path, typer.Option(help="The run's folder: logs, incidents, this agent's record.")],
    runtime_directory: Annotated[
        Path, typer.Option(help="Folder of this node for sockets: a short path; made with mode 0700.")
    ],
    node: Annotated[str | None, typer.Option(help="Name of this node. Default: its host name.")] = None,
    redis_password_file: RedisPasswordFile = None,
    shm_directory: ShmDirectory = DEFAULT_SHM_DIRECTORY,
    address: Annotated[str, typer.Option(help="Address at which other nodes reach this one.")] = "127.0.0.1",
    metrics_address: MetricsAddress = "127.0.0.1",
    metrics_port: MetricsPort = 0,
    checkpoint_full_every: CheckpointFullEvery = 8,
    checkpoint_compression: CheckpointCompression = Compression.AUTO,
    checkpoint_staging: CheckpointStaging = None,
    preemption_grace_s: PreemptionGrace = DEFAULT_PREEMPTION_GRACE_S,
) -> None:
    """Serve one node of a run: start its ranks, watch them, keep their snapshots, write checkpoints."""
    _check(redis, run)
    from holdfast_agent.main import main
    from holdfast_agent.options import AgentOptions

    options = AgentOptions(
        run=run,
        node=node or socket.gethostname(),
        store_url=redis,
        store_password_file=redis_password_file,
        directory=directory.absolute(),
        runtime_directory=runtime_directory.absolute(),
        shm_directory=shm_directory.absolute(),
        address=address,
        metrics_address=metrics_address,
        metrics_port=metrics_port,
        checkpoint_full_every=checkpoint_full_every,
        checkpoint_compression=checkpoint_compression,
        checkpoint_staging=checkpoint_staging and checkpoint_staging.absolute(),
        preemption_grace_s=preemption_grace_s,
    )
    raise typer.Exit(main(options))


def daemon(
    *,
    redis: RequiredRedis,
    directory: Annotated[Path, typer.Option(help="Folder for the log of incidents.")],
    control: Annotated[Path, typer.Option(help="Unix socket of the control API, for `holdfast status --control`.")],
    name: Annotated[str | None, typer.Option(help="Name of this daemon. Default: the host name.")] = None,
    redis_password_file: RedisPasswordFile = None,
    metrics_address: MetricsAddress = "127.0.0.1",
    metrics_port: MetricsPort = 0,
    lease_s: Annotated[
        float, typer.Option("--lease", help="Seconds after which a standby takes over from a dead leader.", min=0.1)
    ] = 2.0,
) -> None:
    """Coordinate all runs of a Redis: judge them, keep incidents, tell agents what to do. Start two, one stands by."""
    _check(redis, None)
    from holdfast_daemon.main import main
    from holdfast_daemon.options import DaemonOptions

    options = DaemonOptions(
        name=name or socket.gethostname(),
        store_url=redis,
        store_password_file=redis_password_file,
        directory=directory.absolute(),
        control=control.absolute(),
        metrics_address=metrics_address,
        metrics_port=metrics_port,
        lease_s=lease_s,
    )
    raise typer.Exit(main(options))


def _check(redis: str, run: str | None) -> None:
    from holdfast_cli.local_run.store import check_url
    from holdfast_proto.keys import check_run_name

    check_url(redis)
    try:
        if run is not None:
            check_run_name(run)
    except ValueError as error:
        raise ConfigurationError(f"--run: {error}") from None
