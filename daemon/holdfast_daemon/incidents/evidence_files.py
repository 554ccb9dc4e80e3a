"""The files that explain what happened: those of an incident, and which generations have a log of a rank.

Which there are, one opened without following links, and all of an incident packed into one.
"""

import errno
import gzip
import io
import os
import stat
import tarfile
from itertools import islice
from pathlib import Path
from typing import IO

from holdfast_base.files import PARTIAL_SUFFIX
from holdfast_daemon.incidents import incident_folder
from holdfast_daemon.incidents.incident_folder import STORY, story_text
from holdfast_proto import run_files
from holdfast_proto.run_files import GENERATION_FOLDER, GENERATIONS_LOGGED, SUSPICION_WITHIN
from holdfast_proto.v1.store_pb2 import Incident

MOST_EVIDENCE_FILES = 5000
_MOST_FOLDERS = 1000


def evidence_files(folder: Path) -> list[tuple[str, int]]:
    """Return name and bytes of the regular files in an incident's folder and one level below; links are left out."""
    found: list[tuple[str, int]] = []
    for prefix, directory in (("", folder), (f"{SUSPICION_WITHIN}/", folder / SUSPICION_WITHIN)):
        try:
            if directory.is_symlink():
                continue
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and len(found) < MOST_EVIDENCE_FILES:
                        found.append((f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size))
        except OSError:
            continue
    return sorted(found)


def open_evidence(folder: Path, name: str) -> IO[bytes]:
    """Open a file of an incident's evidence. Raises OSError unless :func:`evidence_files` could list it."""
    directory, _, file_name = name.rpartition("/")
    if directory not in ("", SUSPICION_WITHIN) or file_name in ("", ".", "..") or "\0" in name:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    parent = folder / directory if directory else folder
    opened = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.fdopen(os.open(file_name, flags, dir_fd=opened), "rb")
    finally:
        os.close(opened)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no regular file")


def file_names(folder: Path) -> list[str]:
    """Return the files in a folder and in those within it, relative and sorted; none if there is no folder."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != PARTIAL_SUFFIX)
    return sorted(str(path.relative_to(folder)) for path in paths)


def pack_incident(incident: Incident, folder: Path, target: IO[bytes]) -> int:
    """Write story and files as a .tar.gz; return how many files are in it. Raises OSError.

    The same incident gives the same bytes. ``folder`` need not exist: the story then is all there is.
    """
    names = {*file_names(folder), STORY, incident_folder.README}
    own = {STORY: story_text(incident).encode(), incident_folder.README: incident_folder.README_TEXT.encode()}
    with (
        gzip.GzipFile("", "wb", fileobj=target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(names):
            data = own[name] if name in own else (folder / name).read_bytes()
            entry = tarfile.TarInfo(f"{incident.id}/{name}")
            entry.size = len(data)
            entry.mtime = int(incident.detected_unix_s)
            archive.addfile(entry, io.BytesIO(data))
    return len(names)


def generations_with_log(directory: Path, rank: int, newest: int) -> tuple[int, ...]:
    """Return the generations of which a run's folder has a log of a rank, the newest first. A link is no log.

    Higher generations than ``newest`` are those of an earlier start of the run.
    """
    try:
        with os.scandir(run_files.logs(directory)) as entries:
            named = [GENERATION_FOLDER.fullmatch(entry.name) for entry in entries]
        found = {int(match[1]) for match in named if match is not None}
    except OSError:
        return ()
    begun = sorted((one for one in found if 1 <= one <= newest), reverse=True)[:_MOST_FOLDERS]
    logs = (one for one in begun if _is_regular(run_files.rank_log(directory, one, rank)))
    return tuple(islice(logs, GENERATIONS_LOGGED))


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
