"""What torchrun's arguments say about the rendezvous of a job."""

import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_base.redis_client import check_url
from holdfast_base.sockets import address_towards
from holdfast_proto import keys, run_files
from holdfast_proto.run_key import RunKey, RunKeyError, RunKeyFile

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters

JOIN_TIMEOUT_S = 600
"""Default time that a node waits for a world, as in torch."""
RESIZE_AFTER_S = 60
"""Default time that a node is missing, or waits, before a job continues with fewer nodes or more."""
_OURS = ("node", "run_key_file", "redis_password_file", "join_timeout", "shrink_to", "resize_after")
_OF_TORCH = (
    "timeout",
    "last_call_timeout",
    "close_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "heartbeat_timeout",
    "read_timeout",
    "is_host",
    "store_type",
    "rank",
)
"""Names in ``--rdzv-conf`` that torch sets itself, or that its own rendezvous take: they mean nothing here."""
_FLAG_NAME = re.compile(r"[a-z][a-z_-]{0,40}")
_UNNAMED = "none"
"""The run's name without ``--rdzv-id``."""


@dataclass(frozen=True, kw_only=True)
class RendezvousSettings:
    """What a job and its node are."""

    run: str
    nodes: int
    """Nodes of a world with which a job begins."""
    shrink_to: int
    """Fewest nodes with which it continues; ``nodes``: it never continues with fewer."""
    resize_after_s: float
    """Time that a node is missing, or waits, before the job continues with fewer nodes or more."""
    has_spares: bool
    """Whether further nodes wait as spares. If a job may have fewer nodes, one that comes back later does too."""
    is_alone: bool
    """Whether there is one node and no spare, which meets nobody."""
    endpoint: str
    """URL of Redis; empty: there is none."""
    password_file: Path | None
    node: str
    local_address: str
    """Address of the node from ``--local-addr``; empty: it is to be found."""
    join_timeout_s: float
    key: RunKey | None = field(repr=False)
    """Key of the run; None: there is no file, so several nodes cannot be watched."""
    key_file: Path
    """File with that key."""
    flags: Mapping[str, str]
    """Flag of `holdfast observe` -> value: what else ``--rdzv-conf`` says."""

    @property
    def meeting_key(self) -> RunKey:
        """The key that signs what the nodes write. Without a secret one it is public, as torch's own rendezvous is."""
        return self.key or RunKey(self.run, self.run)


def read_settings(parameters: "RendezvousParameters") -> RendezvousSettings:
    """Return the settings of a job. Raises ValueError with a line that names the argument."""
    run, is_alone = parameters.run_id, parameters.max_nodes == 1
    if run == _UNNAMED:
        if not is_alone:
            raise ValueError("--rdzv-id is missing: give all nodes of the job the same name, and no other job")
        run = f"torchrun-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        keys.check_run_name(run)
    except ValueError as error:
        raise ValueError(f"--rdzv-id: {error}") from None
    password_file = parameters.get("redis_password_file")
    nodes = parameters.min_nodes
    shrink_to = _checked_shrink_to(parameters.get("shrink_to"), nodes)
    named_key = parameters.get("run_key_file")
    key_file = Path(named_key) if named_key else run_files.run_key(run_files.DIRECTORY, run)
    return RendezvousSettings(
        run=run,
        nodes=nodes,
        shrink_to=shrink_to,
        resize_after_s=_checked_seconds(parameters, "resize_after", RESIZE_AFTER_S, may_be_0=True),
        has_spares=parameters.max_nodes > nodes or shrink_to < nodes,
        is_alone=is_alone,
        endpoint=_checked_endpoint(parameters.endpoint, is_alone=is_alone),
        password_file=Path(password_file) if password_file else None,
        node=_checked_node(parameters.get("node")),
        local_address=parameters.local_addr or "",
        join_timeout_s=_checked_seconds(parameters, "join_timeout", JOIN_TIMEOUT_S),
        key=_find_key(key_file, run, is_named=bool(named_key)),
        key_file=key_file,
        flags=_other_flags(parameters.config),
    )


def say(line: str) -> None:
    """Show the user a line: torchrun shows no log of ours."""
    print(f"holdfast: {line}", file=sys.stderr, flush=True)


def find_address(settings: RendezvousSettings) -> str:
    """Return the address by which other nodes reach this one: its name, as torch uses it, if the name is known.

    Else it is the address from which this node reaches Redis.
    """
    if settings.local_address:
        return settings.local_address
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return address_towards(settings.endpoint)
    return name


def _checked_endpoint(endpoint: str, *, is_alone: bool) -> str:
    if is_alone and not endpoint:
        return ""
    try:
        return check_url(endpoint)
    except ValueError as error:
        text = str(error).replace("--redis-password-file", "--rdzv-conf redis_password_file=FILE")
        raise ValueError(text.replace("--redis", "--rdzv-endpoint")) from None


def _checked_node(name: str | None) -> str:
    if name is None:
        fit = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")
        return fit[:63] or "node"
    if not keys.RUN_NAME.fullmatch(name):
        raise ValueError(
            f"--rdzv-conf node={name[:80]}: use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or"
            " digit"
        )
    return name


def _checked_seconds(parameters: "RendezvousParameters", name: str, default: float, *, may_be_0: bool = False) -> float:
    value = str(parameters.get(name, default))
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not (0.0 < seconds <= 1e9 or (may_be_0 and seconds == 0.0)):
        raise ValueError(f"--rdzv-conf {name}={value[:80]}: a number of seconds is expected")
    return seconds


def _checked_shrink_to(value: str | None, nodes: int) -> int:
    if value is None:
        return nodes
    given = f"--rdzv-conf shrink_to={str(value)[:80]}"
    if nodes == 1:
        raise ValueError(f"{given}: a job of one node cannot have fewer: leave shrink_to out, or raise --nnodes")
    if not re.fullmatch(r"[0-9]{1,6}", str(value)) or not 0 < int(value) < nodes:
        raise ValueError(
            f"{given}: use a number from 1 to {nodes - 1}, fewer than the {nodes} nodes of --nnodes, or leave it out"
        )
    return int(value)


def _other_flags(config: Mapping[str, object]) -> dict[str, str]:
    """Return flag -> value of what is neither ours nor torch's. Raises ValueError for a name that no flag has."""
    flags = {}
    for name, value in config.items():
        if name in _OURS or name in _OF_TORCH:
            continue
        if not _FLAG_NAME.fullmatch(name) or value is None:
            raise ValueError(f"--rdzv-conf {name[:80]}: NAME=VALUE is expected, with the name of a flag")
        flags[f"--{name.replace('_', '-')}"] = str(value)
    return flags


def _find_key(path: Path, run: str, *, is_named: bool) -> RunKey | None:
    """Return the run's key. Raises RunKeyError if there is a file that cannot be used."""
    if not is_named and not path.exists():
        return None
    try:
        return RunKeyFile(path, run).read()
    except RunKeyError as error:
        raise RunKeyError(str(error).replace("--run-key-file", "--rdzv-conf run_key_file=FILE")) from None
