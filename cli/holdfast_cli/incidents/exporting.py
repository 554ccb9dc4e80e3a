"""Packs an incident into one file: the same incident gives the same bytes."""

import gzip
import io
import tarfile
from pathlib import Path

from holdfast_cli.incidents.files import file_names
from holdfast_daemon.incidents import folder as incident_folder
from holdfast_daemon.incidents.story import story_text
from holdfast_proto.v1.store_pb2 import Incident


def export_incident(incident: Incident, folder: Path, target: Path) -> int:
    """Write story and files as a .tar.gz; return how many files are in it. Raises OSError.

    ``folder`` need not exist: the story then is all there is.
    """
    contents = {name: (folder / name).read_bytes() for name in file_names(folder)}
    contents[incident_folder.STORY] = story_text(incident).encode()
    contents[incident_folder.README] = incident_folder.README_TEXT.encode()
    partial = target.with_name(target.name + ".partial")
    with (
        partial.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(contents):
            entry = tarfile.TarInfo(f"{incident.id}/{name}")
            entry.size = len(contents[name])
            entry.mtime = int(incident.detected_unix_s)
            archive.addfile(entry, io.BytesIO(contents[name]))
    partial.replace(target)
    return len(contents)
