"""The file that an agent and a daemon write once they serve: the command finds their pids and metrics by it.

Its path is in :mod:`holdfast_proto.run_files`.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast_base.files import read_regular, replace_file

_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Endpoint:
    """Process and ports of a component that serves."""

    pid: int
    metrics_port: int
    console_port: int = 0
    """Port of the daemon's console; 0: it has none."""
    console_address: str = ""
    """Address on which the console listens."""
    console_tokens: str = ""
    """File with the secrets of the console. The secrets are never here."""
    console_scheme: str = "http"
    """https with TLS."""


def write_endpoint(
    path: Path,
    metrics_port: int,
    *,
    console_port: int = 0,
    console_address: str = "",
    console_tokens: str = "",
    console_scheme: str = "http",
) -> None:
    """Write that this process serves its metrics on ``metrics_port``, and perhaps a console. Raises OSError."""
    endpoint = Endpoint(os.getpid(), metrics_port, console_port, console_address, console_tokens, console_scheme)
    replace_file(path, json.dumps(asdict(endpoint)).encode(), mode=0o600)


def read_endpoint(path: Path) -> Endpoint | None:
    """Return the endpoint that a component wrote, or None while there is none."""
    try:
        fields: dict[str, Any] = json.loads(read_regular(path, _MOST_BYTES))
        address, tokens = (str(fields.get(name, "")) for name in ("console_address", "console_tokens"))
        scheme = "https" if fields.get("console_scheme") == "https" else "http"
        port = int(fields.get("console_port", 0))
        return Endpoint(int(fields["pid"]), int(fields["metrics_port"]), port, address, tokens, scheme)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
