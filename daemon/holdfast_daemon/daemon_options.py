"""The settings of a daemon."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_proto import run_files


@dataclass(frozen=True, kw_only=True)
class DaemonOptions:
    """Settings of one daemon. It watches every run that is registered in the store.

    Their defaults are those of `holdfast daemon`.
    """

    name: str
    """Name for people. Two daemons may have the same one: see :attr:`identity`."""
    store_url: str
    store_password_file: Path | None = None
    run_key_file: Path | None = None
    """File with the key of all runs that it watches; None: each has one in ``directory``."""
    directory: Path
    """Folder of the incidents, their log and failures."""
    share_group: bool = False
    """Whether the group of ``directory`` may read it, if this daemon makes it."""
    control: Path
    """Unix socket of the operators' service, mode 0600."""
    metrics_address: str
    metrics_port: int
    """Port of /metrics; 0: the kernel chooses."""
    metrics_config: Path | None = None
    """File with TLS and passwords for /metrics; None: plain HTTP for everybody."""
    lease_s: float
    """Seconds after which a leader that does not renew its lease is replaced."""

    console: bool = True
    """Whether to serve the console, if its packages are installed."""
    console_address: str = "127.0.0.1"
    console_port: int = 0
    """Port of the console; 0: the kernel chooses."""
    console_hosts: tuple[str, ...] = ()
    """Further names by which browsers may call the console, such as that of a proxy; with a scheme, by it alone."""
    console_cert_file: Path | None = None
    """Certificate of the console, with its chain; None: the console serves plain HTTP."""
    console_key_file: Path | None = None
    console_client_ca: Path | None = None
    """Authority whose clients alone may open the console; None: their certificates are not asked for."""
    console_token_file: Path | None = None
    """File that keeps the console's tokens; None: one in ``directory``."""

    process: str = field(default_factory=lambda: secrets.token_hex(8))
    """Random text, so that no two processes share it."""

    @property
    def identity(self) -> str:
        """The holder's name in a lease. Two processes of one host name must never hold the same lease."""
        return f"{self.name}-{self.process}"

    def run_key(self, run: str) -> Path:
        """Return the file with the key of a run."""
        return self.run_key_file or run_files.run_key(self.directory, run)

    @property
    def endpoint_file(self) -> Path:
        """JSON that says where this daemon serves, once it does."""
        return run_files.daemon_endpoint(self.control)

    @property
    def console_tokens(self) -> Path:
        """JSON file with the secrets of the console, mode 0600."""
        return self.console_token_file or run_files.console_tokens(self.directory)
