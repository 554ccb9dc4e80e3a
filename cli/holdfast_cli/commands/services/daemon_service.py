"""``holdfast daemon``: coordinates all runs of a Redis."""

import os
import socket

import typer

from holdfast_base.processes import name_process
from holdfast_cli.flags.services import DaemonFlags
from holdfast_cli.local_run.run_options import check_console_hosts, check_console_tls
from holdfast_cli.local_run.store import check_url
from holdfast_daemon.daemon_options import DaemonOptions


def daemon(flags: DaemonFlags) -> None:
    """Serve until a signal ends it, and exit with the daemon's code."""
    # With this variable, which is meant for the job, prometheus_client would write our numbers to files in its folder,
    # and raise if that is missing. It reads the variable when it is imported.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    from holdfast_daemon.main import main

    name_process("holdfast-daemon")
    check_url(flags.redis)
    check_console_hosts(flags.console_hosts or ())
    tls = (flags.console_cert_file, flags.console_key_file, flags.console_client_ca)
    certificate, key, client_authority = (path and path.absolute() for path in tls)
    check_console_tls(certificate, key, client_authority)
    options = DaemonOptions(
        name=flags.name or socket.gethostname(),
        store_url=flags.redis,
        store_password_file=flags.redis_password_file,
        run_key_file=flags.run_key_file and flags.run_key_file.absolute(),
        directory=flags.directory.absolute(),
        share_group=flags.share_group,
        control=flags.control.absolute(),
        metrics_address=flags.metrics_address,
        metrics_config=flags.metrics_config and flags.metrics_config.absolute(),
        metrics_port=flags.metrics_port,
        lease_s=flags.lease_s,
        console=flags.console,
        console_address=flags.console_address,
        console_port=flags.console_port,
        console_hosts=tuple(flags.console_hosts or ()),
        console_cert_file=certificate,
        console_key_file=key,
        console_client_ca=client_authority,
        console_token_file=flags.console_token_file.absolute() if flags.console_token_file else None,
    )
    raise typer.Exit(main(options))
