"""Which of many folders hold too much, by number, size and age. Only files that a pattern names are ours to remove.

No link is followed: what people have linked into a folder, or linked it to, stays.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class FolderLimits:
    """How much stays. The first limit that is reached counts."""

    folders: int
    """Most folders with files of ours."""
    total_bytes: int
    """Most bytes of all such files."""
    age_s: float
    """Longest time since a folder has changed."""
    untouched: int = 10
    """Newest folders that stay whatever their size and age: people may be reading them."""


@dataclass(frozen=True)
class MeasuredFolder:
    """A folder, and the files in it that are ours."""

    name: str
    changed_unix_s: float
    files: int
    size: int


@dataclass(frozen=True)
class OurFiles:
    """What is ours in each folder of a place."""

    names: re.Pattern[str]
    within: str = ""
    """Name of a folder in each folder that holds files of the same names; empty: there is none."""
    dated_by: str = ""
    """File whose time is that of its folder, and without which a folder is left alone; empty: the folder's own."""

    def newest_first(self, root: int) -> list[MeasuredFolder]:
        """Return the folders in an open one. Folders that cannot be read are left out. Raises OSError."""
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        found = []
        for name in names:
            with contextlib.suppress(OSError):  # it was renamed, or another user owns it
                found.append(self._measured(root, name))
        return sorted(found, key=lambda one: one.changed_unix_s, reverse=True)

    def _measured(self, root: int, name: str) -> MeasuredFolder:
        files = size = 0
        with opened(root, name) as folder:
            dated = os.stat(self.dated_by, dir_fd=folder, follow_symlinks=False) if self.dated_by else os.fstat(folder)
            for place, file in self.files(folder):
                files += 1
                size += os.stat(file, dir_fd=place, follow_symlinks=False).st_size
        return MeasuredFolder(name, dated.st_mtime, files, size)

    def files(self, folder: int) -> Iterator[tuple[int, str]]:
        """Yield our files in an open folder, and in the one within it: open folder and name. Raises OSError."""
        with contextlib.ExitStack() as entered:
            places = [folder]
            if self.within:
                with contextlib.suppress(OSError):
                    places.append(entered.enter_context(opened(folder, self.within)))
            for place in places:
                with os.scandir(place) as entries:
                    names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
                yield from ((place, name) for name in names if self.names.fullmatch(name))

    def remove(self, folder: int) -> None:
        """Remove our files from an open folder, and the folder within it if nothing else is there. Raises OSError."""
        for place, name in self.files(folder):
            os.unlink(name, dir_fd=place)
        if self.within:
            with contextlib.suppress(OSError):  # people have put something there, or there is none
                os.rmdir(self.within, dir_fd=folder)


def too_much(newest_first: Iterable[MeasuredFolder], now_unix_s: float, limits: FolderLimits) -> list[MeasuredFolder]:
    """Return the folders whose files are beyond the limits, oldest first."""
    found, total_bytes = [], 0
    for index, folder in enumerate(one for one in newest_first if one.files):
        total_bytes += folder.size
        is_old = now_unix_s - folder.changed_unix_s > limits.age_s
        if index >= limits.untouched and (is_old or index >= limits.folders or total_bytes > limits.total_bytes):
            found.append(folder)
    return found[::-1]


def remove_old_folders(
    place: str | os.PathLike[str], ours: OurFiles, limits: FolderLimits, now_unix_s: float
) -> list[str]:
    """Remove the folders that are too much and hold nothing but files of ours; return their names, oldest first.

    A folder with anything else is left as it is: it belongs to people, or to another program of ours. One that cannot
    be removed is left for the next time. Raises OSError if the place cannot be read.
    """
    removed = []
    root = os.open(place, AS_FOLDER)
    try:
        alone = [one for one in ours.newest_first(root) if _holds_nothing_else(root, one.name, ours)]
        for folder in too_much(alone, now_unix_s, limits):
            with contextlib.suppress(OSError):
                with opened(root, folder.name) as emptied:
                    ours.remove(emptied)
                os.rmdir(folder.name, dir_fd=root)
                removed.append(folder.name)
    finally:
        os.close(root)
    return removed


def _holds_nothing_else(root: int, name: str, ours: OurFiles) -> bool:
    def is_ours(one: str) -> bool:
        return bool(ours.names.fullmatch(one))

    with contextlib.suppress(OSError), opened(root, name) as folder:
        inside = _names(folder, is_ours)
        if inside == [ours.within] and ours.within:
            with opened(folder, ours.within) as within:
                inside = _names(within, is_ours)
        return not inside
    return False


def _names(folder: int, is_ours: Callable[[str], bool]) -> list[str]:
    """Return the names in an open folder that are not ours."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not is_ours(entry.name) or entry.is_dir(follow_symlinks=False)]


@contextlib.contextmanager
def opened(root: int, name: str) -> Iterator[int]:
    """Open a folder in an open one. Raises OSError, also if it is a link."""
    folder = os.open(name, AS_FOLDER, dir_fd=root)
    try:
        yield folder
    finally:
        os.close(folder)
