"""Keeps the files of a node within bounds: logs by size and by generation, evidence and profiles by number and size."""

import asyncio
import contextlib
import functools
import math
import os
import re
import shutil
import time
from pathlib import Path

from holdfast_agent.node import Node
from holdfast_base.files import make_folder_of_run
from holdfast_base.log_files import LOOK_EVERY_S, limit_log
from holdfast_base.old_folders import FolderLimits, OurFiles, remove_old_folders
from holdfast_base.threads import in_daemon_thread
from holdfast_proto.run_files import (
    EVIDENCE_NAME,
    GENERATION_FOLDER,
    GENERATIONS_LOGGED,
    MISSING,
    SUSPICION_WITHIN,
    process_log,
)

EVIDENCE = OurFiles(re.compile(rf"{EVIDENCE_NAME}|{re.escape(MISSING)}"), within=SUSPICION_WITHIN)
"""Files of evidence. A folder with a daemon's story is that daemon's to empty: it knows which incidents are open."""
EVIDENCE_LIMITS = FolderLimits(folders=200, total_bytes=20 * 2**30, age_s=30 * 86_400.0)
"""Evidence that stays on a node. At most two incidents are open at a time, and the newest ten stay in any case."""
PROFILES = OurFiles(re.compile(EVIDENCE_NAME))
PROFILE_LIMITS = FolderLimits(folders=50, total_bytes=20 * 2**30, age_s=math.inf)
"""Profiles that stay. Somebody has asked for each, so age alone removes none."""
TIDY_EVERY_S = 600.0
"""Pause between two looks at evidence and profiles: each reads all their folders."""
_IN_USE_S = 86_400.0
"""Time since the last line after which a log of another generation is no longer in use."""


def begin_logs(folder: Path) -> None:
    """Create the folder of a generation's logs, as the newest one. Raises OSError."""
    make_folder_of_run(folder)
    with contextlib.suppress(OSError):
        os.utime(folder)  # an earlier start of the run may have left it


def remove_old_logs(folder: Path) -> None:
    """Remove the logs of old generations next to ``folder``, which stays. Raises OSError if its place cannot be read.

    The age of a folder counts, and not its number: each start of a run numbers its generations anew.
    """
    with os.scandir(folder.parent) as entries:
        found = [
            (entry.stat(follow_symlinks=False).st_mtime, entry.name)
            for entry in entries
            if GENERATION_FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    for _, name in sorted(found, reverse=True)[GENERATIONS_LOGGED:]:
        if name != folder.name and not _is_in_use(folder.parent / name):
            shutil.rmtree(folder.parent / name, ignore_errors=True)


def _is_in_use(folder: Path) -> bool:
    """Return whether a log in the folder was written a short time ago: another run may share the place."""
    since = time.time() - _IN_USE_S
    with os.scandir(folder) as entries:
        return any(entry.stat(follow_symlinks=False).st_mtime > since for entry in entries)


async def limit_logs(node: Node) -> None:
    """Look at the logs of a node again and again, in threads, because a disk may hang."""
    tidied = 0
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        generation = node.generation
        with node.errors.contained("rank_logs"):
            if generation > tidied:
                tidied = generation
                folder = node.options.rank_log(generation, 0).parent
                await in_daemon_thread(functools.partial(remove_old_logs, folder))
        logs = [node.options.rank_log(rank.generation, rank.rank) for rank in node.ranks.values()]
        for path in (*logs, process_log(node.options.directory, "warm-parent")):
            with node.errors.contained("rank_logs"):
                await in_daemon_thread(functools.partial(limit_log, path))


async def limit_evidence(node: Node) -> None:
    """Look at the evidence and the profiles of a node again and again, in threads as above."""
    options = node.options
    # The names are any: only the folders that hold them are meant.
    evidence, profiles = options.incident_directory("any").parent, options.profile_directory("any").parent
    while True:
        await asyncio.sleep(TIDY_EVERY_S)
        for place, ours, limits in ((evidence, EVIDENCE, EVIDENCE_LIMITS), (profiles, PROFILES, PROFILE_LIMITS)):
            with node.errors.contained("evidence"), contextlib.suppress(FileNotFoundError):
                await in_daemon_thread(functools.partial(remove_old_folders, place, ours, limits, time.time()))
