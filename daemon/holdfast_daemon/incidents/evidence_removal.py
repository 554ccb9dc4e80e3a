"""Removes the evidence of old incidents, and later their stories, so that a long run does not fill the disk."""

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast_base.old_folders import AS_FOLDER, FolderLimits, MeasuredFolder, OurFiles, opened, too_much
from holdfast_daemon.incidents.evidence_files import open_evidence
from holdfast_daemon.incidents.incident_folder import README, STATE, STORY, TICKS, StoryError, parse_story
from holdfast_proto.run_files import EVIDENCE_NAME, MISSING, SUSPICION_WITHIN
from holdfast_proto.v1 import store_pb2 as store

REMOVED = "removed.txt"
"""Name of the file that says what was removed from an incident's folder."""
_OURS = OurFiles(
    re.compile(rf"{EVIDENCE_NAME}|{re.escape(MISSING)}|{re.escape(STATE)}|{re.escape(TICKS)}"),
    within=SUSPICION_WITHIN,
    dated_by=STORY,
)
"""Files of evidence. What people have put next to them stays, as the story does."""
_OPEN = (store.INCIDENT_STATE_OPEN, store.INCIDENT_STATE_STANDSTILL)


@dataclass(frozen=True)
class EvidenceLimits(FolderLimits):
    """How much evidence of one run stays, and how many stories."""

    folders: int = 200
    """Most incidents with evidence: nobody reads more of one run."""
    total_bytes: int = 20 * 2**30
    """Most bytes of all evidence: the recording of one incident alone may have 64 MiB."""
    age_s: float = 30 * 86_400.0
    """Longest time since an incident has changed: after a month its cause has been looked for."""
    stories: int = 2000
    """Most incidents with a story. One has 3 to 30 kB, and readers of all incidents open each of them."""


def remove_old_evidence(
    directory: Path,
    now_unix_s: float,
    failed: Callable[[Path, Exception], None],
    limits: EvidenceLimits = EvidenceLimits(),
) -> list[str]:
    """Remove the evidence that is too much, oldest first; return the incidents that it was of.

    Of still older incidents, the stories are removed too. A folder without a story that can be read stays as it is, and
    so does that of an open incident. ``failed`` is called with each folder from which not all could be removed. Raises
    OSError if ``directory`` cannot be read.
    """
    removed = []
    root = os.open(directory, AS_FOLDER)
    try:
        every = _OURS.newest_first(root)
        for folder in too_much(every, now_unix_s, limits):
            try:
                if _is_over(directory / folder.name):
                    _empty(root, folder, now_unix_s)
                    removed.append(folder.name)
            except OSError as error:
                failed(directory / folder.name, error)
        for folder in every[max(limits.stories, limits.untouched) :]:
            try:
                if _is_over(directory / folder.name):
                    _remove_story(root, folder.name)
            except OSError as error:
                failed(directory / folder.name, error)
    finally:
        os.close(root)
    return removed


def _is_over(folder: Path) -> bool:
    try:
        with open_evidence(folder, STORY) as file:
            return parse_story(file.read()).state not in _OPEN
    except StoryError:
        return False


def _empty(root: int, measured: MeasuredFolder, now_unix_s: float) -> None:
    with opened(root, measured.name) as folder:
        _OURS.remove(folder)
        # Last: on a full disk, this file has room only now.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(REMOVED, flags, 0o600, dir_fd=folder), "a") as file:
            when = datetime.fromtimestamp(now_unix_s, UTC).isoformat(timespec="seconds")
            file.write(f"{when} removed {measured.files} files, {measured.size} bytes: old, or too many\n")


def _remove_story(root: int, name: str) -> None:
    """Remove a folder that holds the story alone. People may have put something there that is about the story."""
    with opened(root, name) as folder:
        with os.scandir(folder) as entries:
            if not {entry.name for entry in entries} <= {README, REMOVED, STORY}:
                return
        for ours in (README, REMOVED, STORY):  # the story last: without it, the folder would not be found again
            with contextlib.suppress(FileNotFoundError):
                os.unlink(ours, dir_fd=folder)
    with contextlib.suppress(OSError):  # somebody has put something there just now
        os.rmdir(name, dir_fd=root)
