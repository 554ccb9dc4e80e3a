"""The address of a daemon's console, with the token that opens it, and the tunnel that leads there."""

import json
import socket
from pathlib import Path
from typing import TextIO

from holdfast_base.files import read_regular
from holdfast_proto import run_files
from holdfast_proto.endpoint import read_endpoint

OPERATOR, VIEWER = "operator", "viewer"
_MOST_BYTES = 1 << 16
_ANY = ("", "0.0.0.0", "::")


def console_lines(control: Path, role: str = OPERATOR) -> list[str]:
    """Return the lines for people about the console of the daemon with this control socket; [] if it has none.

    They hold the secret of a role: print them for the user who asks, and write them to no log. Without a role they hold
    none.
    """
    endpoint = read_endpoint(run_files.daemon_endpoint(control))
    if endpoint is None or not endpoint.console_port:
        return []
    place, tokens = (endpoint.console_address, endpoint.console_port), Path(endpoint.console_tokens)
    return address_lines(*place, tokens, role, endpoint.console_scheme)


def address_lines(address: str, port: int, tokens: Path, role: str, scheme: str = "http") -> list[str]:
    """Return the same lines of a console at an address, whose secrets are in the file ``tokens``."""
    token = _token(tokens, role) if role else ""
    host = "127.0.0.1" if address in _ANY else f"[{address}]" if ":" in address else address
    lines = [f"console: {scheme}://{host}:{port}/{f'#token={token}' if token else ''}"]
    if host in ("127.0.0.1", "localhost", "[::1]"):
        lines.append(f"from another machine, first: ssh -N -L {port}:{host}:{port} {socket.gethostname()}")
    return lines


def start_lines(control: Path, output: TextIO) -> list[str]:
    """Return the lines that a run begins with. Only a terminal shows the secret: other output may be a job's log."""
    if output.isatty():
        return console_lines(control)
    lines = console_lines(control, role="")
    return [*lines, "`holdfast console` prints this address with the token that opens it"] if lines else []


def _token(path: Path, role: str) -> str:
    """Return the token of a role; "" if this user may not read it: the page then asks for it."""
    try:
        return str(json.loads(read_regular(path, _MOST_BYTES))[role])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
