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
    directory: Path
    """Folder of the incidents, their log and failures."""
    control: Path
    """Unix socket of the operators' service, mode 0600."""
    metrics_address: str
    metrics_port: int
    """Port of /metrics; 0: the kernel chooses."""
    lease_s: float
    """Seconds after which a leader that does not renew its lease is replaced."""

    process: str = field(default_factory=lambda: secrets.token_hex(8))
    """Random text, so that no two processes share it."""

    @property
    def identity(self) -> str:
        """The holder's name in a lease. Two processes of one host name must never hold the same lease."""
        return f"{self.name}-{self.process}"

    @property
    def endpoint_file(self) -> Path:
        """JSON that says where this daemon serves, once it does."""
        return run_files.daemon_endpoint(self.control)
