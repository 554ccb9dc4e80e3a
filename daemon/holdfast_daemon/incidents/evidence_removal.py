"""Removes the evidence of old incidents, so that a long run does not fill the disk. The stories stay."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast_daemon.incidents.evidence_files import open_evidence
from holdfast_daemon.incidents.incident_folder import STATE, STORY, TICKS, StoryError, parse_story
from holdfast_proto.run_files import MISSING, SUSPICION_WITHIN
from holdfast_proto.v1 import store_pb2 as store

REMOVED = "removed.txt"
"""Name of the file that says what was removed from an incident's folder."""
_OURS = re.compile(rf"(rank|node)-.+|{re.escape(MISSING)}|{re.escape(STATE)}|{re.escape(TICKS)}")
"""Files of evidence. What people have put next to them stays, as the story does."""
_OPEN = (store.INCIDENT_STATE_OPEN, store.INCIDENT_STATE_STANDSTILL)
_AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class EvidenceLimits:
    """How much evidence of one run stays. The first limit that is reached counts."""

    folders: int = 200
    """Most incidents with evidence: nobody reads more of one run."""
    total_bytes: int = 20 * 2**30
    """Most bytes of all evidence: the recording of one incident alone may have 64 MiB."""
    age_s: float = 30 * 86_400.0
    """Longest time since an incident has changed: after a month its cause has been looked for."""
    untouched: int = 10
    """Newest incidents whose evidence stays whatever its size and age: people may be reading it."""


@dataclass(frozen=True)
class _Folder:
    name: str
    changed_unix_s: float
    files: int
    size: int


def remove_old_evidence(
    directory: Path,
    now_unix_s: float,
    failed: Callable[[Path, Exception], None],
    limits: EvidenceLimits = EvidenceLimits(),
) -> list[str]:
    """Remove the evidence that is too much, oldest first; return the incidents that it was of.

    No link is followed. A folder without a story that can be read stays as it is, and so does that of an open incident.
    ``failed`` is called with each folder from which not all could be removed. Raises OSError if ``directory`` cannot be
    read.
    """
    removed = []
    root = os.open(directory, _AS_FOLDER)
    try:
        for folder in _too_much(_newest_first(root), now_unix_s, limits):
            try:
                if _is_over(directory / folder.name):
                    _empty(root, folder, now_unix_s)
                    removed.append(folder.name)
            except OSError as error:
                failed(directory / folder.name, error)
    finally:
        os.close(root)
    return removed


def _too_much(newest_first: Iterable[_Folder], now_unix_s: float, limits: EvidenceLimits) -> list[_Folder]:
    found, total_bytes = [], 0
    for index, folder in enumerate(newest_first):
        total_bytes += folder.size
        is_old = now_unix_s - folder.changed_unix_s > limits.age_s
        if index >= limits.untouched and (is_old or index >= limits.folders or total_bytes > limits.total_bytes):
            found.append(folder)
    return found[::-1]


def _newest_first(root: int) -> list[_Folder]:
    """Return the folders that have evidence."""
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    found = []
    for name in names:
        with contextlib.suppress(OSError):  # it was renamed, or another user owns it
            found.append(_measure(root, name))
    return sorted((one for one in found if one.files), key=lambda one: one.changed_unix_s, reverse=True)


def _measure(root: int, name: str) -> _Folder:
    files = size = 0
    with _opened(root, name) as folder:
        changed_unix_s = os.stat(STORY, dir_fd=folder, follow_symlinks=False).st_mtime
        for within, file in _evidence(folder):
            files += 1
            size += os.stat(file, dir_fd=within, follow_symlinks=False).st_size
    return _Folder(name, changed_unix_s, files, size)


def _evidence(folder: int) -> Iterator[tuple[int, str]]:
    """Yield the files of evidence in an incident's folder, and in that of its suspicion: open folder and name."""
    with contextlib.ExitStack() as opened:
        places = [folder]
        with contextlib.suppress(OSError):
            places.append(opened.enter_context(_opened(folder, SUSPICION_WITHIN)))
        for place in places:
            with os.scandir(place) as entries:
                names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
            yield from ((place, name) for name in names if _OURS.fullmatch(name))


def _is_over(folder: Path) -> bool:
    try:
        with open_evidence(folder, STORY) as file:
            return parse_story(file.read()).state not in _OPEN
    except StoryError:
        return False


def _empty(root: int, measured: _Folder, now_unix_s: float) -> None:
    with _opened(root, measured.name) as folder:
        for within, name in _evidence(folder):
            os.unlink(name, dir_fd=within)
        with contextlib.suppress(OSError):  # people have put something there, or there is none
            os.rmdir(SUSPICION_WITHIN, dir_fd=folder)
        # Last: on a full disk, this file has room only now.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(REMOVED, flags, 0o600, dir_fd=folder), "a") as file:
            when = datetime.fromtimestamp(now_unix_s, UTC).isoformat(timespec="seconds")
            file.write(f"{when} removed {measured.files} files, {measured.size} bytes: old, or too many\n")


@contextlib.contextmanager
def _opened(root: int, name: str) -> Iterator[int]:
    folder = os.open(name, _AS_FOLDER, dir_fd=root)
    try:
        yield folder
    finally:
        os.close(folder)
