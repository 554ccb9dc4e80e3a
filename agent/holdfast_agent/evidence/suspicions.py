"""Folders of evidence gathered while the world only seems to hang."""

import contextlib
import shutil
from pathlib import Path

KEPT = 2
"""A suspicion that was not confirmed is of no use for long."""


def make_room(directory: Path) -> None:
    """Remove all suspicions but the newest, so that there is room for one more."""
    folders = sorted((path for path in directory.glob("*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in folders[: -(KEPT - 1)]:
        shutil.rmtree(folder, ignore_errors=True)


def take_in(suspicion: Path, incident: Path) -> None:
    """Move what was gathered at the suspicion into the incident's folder."""
    with contextlib.suppress(FileNotFoundError):  # nothing was gathered, or another node of this folder has moved it
        suspicion.rename(incident / "suspicion")
