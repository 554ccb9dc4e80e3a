"""``holdfast agent``: serves one node of a run."""

import socket

import typer

from holdfast_agent.agent_options import AgentOptions
from holdfast_agent.main import main
from holdfast_base.processes import name_process
from holdfast_cli.errors import SettingsError
from holdfast_cli.flags.services import AgentFlags
from holdfast_cli.local_run.run_options import check_replica_place
from holdfast_cli.local_run.store import check_url
from holdfast_cli.settings.schema import RunSettings
from holdfast_proto.keys import check_run_name


def agent(flags: AgentFlags) -> None:
    """Serve until the run ends, and exit with the agent's code."""
    name_process("holdfast-agent")
    check_url(flags.redis)
    try:
        check_run_name(flags.run)
    except ValueError as error:
        raise SettingsError(f"--run: {error}") from None
    check_replica_place(flags.topology, flags.replica_address)
    warnings = RunSettings(stop_on_sigusr1=flags.stop_on_sigusr1, stop_on_sigusr2=flags.stop_on_sigusr2)
    options = AgentOptions(
        run=flags.run,
        node=flags.node or socket.gethostname(),
        store_url=flags.redis,
        store_password_file=flags.redis_password_file,
        run_key_file=flags.run_key_file and flags.run_key_file.absolute(),
        directory=flags.directory.absolute(),
        share_group=flags.share_group,
        runtime_directory=flags.runtime_directory.absolute(),
        shm_directory=flags.shm_directory.absolute(),
        address=flags.address,
        topology=flags.topology or "",
        replica_address=flags.replica_address or "",
        metrics_address=flags.metrics_address,
        metrics_config=flags.metrics_config and flags.metrics_config.absolute(),
        metrics_port=flags.metrics_port,
        checkpoint_full_every=flags.checkpoint_full_every,
        checkpoint_compression=flags.checkpoint_compression,
        checkpoint_staging=flags.checkpoint_staging and flags.checkpoint_staging.absolute(),
        preemption_grace_s=flags.preemption_grace_s,
        preemption_warnings=warnings.preemption_warnings,
    )
    raise typer.Exit(main(options))
