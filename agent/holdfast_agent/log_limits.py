"""Keeps the logs of ranks within bounds."""

import contextlib
import os
import shutil
from pathlib import Path

GENERATIONS_LOGGED = 100
"""Generations whose logs are kept: as many as the console offers."""


def begin_logs(folder: Path) -> None:
    """Create the folder of a generation's logs, and remove those of old generations next to it.

    The age of a folder counts, and not its number: each start of a run numbers its generations anew. Nothing raises but
    the creation of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        os.utime(folder)  # an earlier start of the run may have left it
        with os.scandir(folder.parent) as entries:
            found = [
                (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name)
                for entry in entries
                if entry.name.startswith("generation-") and entry.is_dir(follow_symlinks=False)
            ]
        for _, name in sorted(found, reverse=True)[GENERATIONS_LOGGED:]:
            if name != folder.name:
                shutil.rmtree(folder.parent / name, ignore_errors=True)
