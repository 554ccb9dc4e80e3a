"""The files of an incident's folder, and all of them packed into one."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import IO

from holdfast_base.files import PARTIAL_SUFFIX
from holdfast_daemon.incidents import folder as incident_folder
from holdfast_daemon.incidents.story import STORY, story_text
from holdfast_proto.v1.store_pb2 import Incident


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
