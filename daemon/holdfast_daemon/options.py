"""What a daemon must be told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DaemonOptions:
    """Settings of one daemon. It looks after every run that is registered in the store."""

    name: str
    """Unique among the daemons of one store."""
    store_url: str
    store_password_file: Path | None = None
    directory: Path
    """For the incident logs."""
    control: Path
    """Unix socket of the operators' service, mode 0600."""
    metrics_address: str = "127.0.0.1"
    metrics_port: int = 0
    """0: the kernel chooses."""
    lease_s: float = 2.0
    """A leader that is silent for so long is replaced."""

    @property
    def endpoint_file(self) -> Path:
        """JSON that says where this daemon serves, once it does."""
        return self.control.with_name(self.control.name + ".json")
