"""The part of a run that an activity sees."""

import os
from dataclasses import dataclass
from pathlib import Path

from .pause import Pause

FOLDER, TWIN, CASE, PORT, HTTP_PORT = "ODD_FOLDER", "ODD_TWIN", "ODD_CASE", "ODD_PORT", "ODD_HTTP_PORT"
"""Environment variables of the ranks."""


@dataclass(frozen=True)
class Scene:
    """One rank in its pause."""

    rank: int
    pause: Pause

    @property
    def folder(self) -> Path:
        """Folder of the run, for files."""
        return Path(os.environ[FOLDER])

    @property
    def port(self) -> int:
        """Port of the slow server on loopback."""
        return int(os.environ[PORT])

    @property
    def http_port(self) -> int:
        """Port of the slow HTTP server on loopback."""
        return int(os.environ[HTTP_PORT])
