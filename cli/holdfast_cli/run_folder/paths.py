"""Where everything of a local run lies."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast_cli.errors import ConfigurationError
from holdfast_cli.run_folder.sweep import RUNTIME_PREFIX

_LONGEST_SOCKET_NAME = 40
_LONGEST_SOCKET_PATH = 107
"""Of Linux: sun_path less the closing zero."""


@dataclass(frozen=True)
class RunPaths:
    """Paths of one run: what stays in ``directory``, what goes with the run in ``runtime`` and ``memory``."""

    directory: Path
    runtime: Path
    memory: Path
    """For snapshots."""
    node: str

    @property
    def logs(self) -> Path:
        """One file for each component, and those of the ranks."""
        return self.directory / "logs"

    @property
    def redis_data(self) -> Path:
        """The append-only file."""
        return self.directory / "redis"

    @property
    def targets(self) -> Path:
        """What Prometheus may scrape, for its file_sd_configs."""
        return self.directory / "targets.json"

    @property
    def redis_socket(self) -> Path:
        """Of our own server."""
        return self.runtime / "redis.sock"

    @property
    def control(self) -> Path:
        """The daemon's control socket."""
        return self.runtime / "daemon.sock"

    @property
    def daemon_endpoint(self) -> Path:
        """Written by the daemon when it serves."""
        return self.runtime / "daemon.sock.json"

    @property
    def agent_endpoint(self) -> Path:
        """Written by the agent when it serves."""
        return self.runtime / f"agent-{self.node}.json"


def incident_directory(run_directory: Path, run: str, identity: str) -> Path:
    """Return where agent and daemon of a local run keep an incident: evidence, story and recording."""
    return run_directory / "incidents" / run / identity


def prepare_directory(directory: Path) -> Path:
    """Create a run's directory with its folders and return its absolute path."""
    absolute = directory.absolute()
    try:
        (absolute / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"--directory {directory.parent}: {error.filename}: {error.strerror}: name a folder that you can write to"
        ) from None
    return absolute


def empty_redis_data(paths: RunPaths) -> None:
    """Leave our own server with no data, as the next one will find it."""
    shutil.rmtree(paths.redis_data, ignore_errors=True)
    paths.redis_data.mkdir()


def make_runtime_directory() -> Path:
    """Create a directory for sockets (mode 0700) whose path is short enough for them."""
    preferred = os.environ.get("XDG_RUNTIME_DIR", "")
    for parent in (preferred, tempfile.gettempdir(), "/tmp"):
        longest = len(os.fsencode(parent)) + len(RUNTIME_PREFIX) + 10 + _LONGEST_SOCKET_NAME
        if parent and longest <= _LONGEST_SOCKET_PATH and os.access(parent, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix=RUNTIME_PREFIX, dir=parent))
    raise ConfigurationError(
        "no place for sockets: set XDG_RUNTIME_DIR or TMPDIR to a short path that you can write to"
    )


def make_memory_directory(shm_directory: Path, run: str, instance: str) -> Path:
    """Create a directory for the snapshots of one instance of a run.

    Of one instance, because another run of this name may be going on under another --directory.
    """
    directory = shm_directory.absolute() / f"holdfast-{os.geteuid()}-{run}-{instance}"
    try:
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigurationError(
            f"--shm-directory {shm_directory}: {error.strerror}: name a memory file system that you can write to"
        ) from None
    return directory
