"""Finds the dumps of a job in a folder, and the stacks next to them."""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_agent.evidence.recorder_dump import HIGHEST_RANK, LARGEST_DUMP_BYTES, NoDumpError, printable, read_dump
from holdfast_cli.analysis.one_job import DumpFile, of_one_job
from holdfast_cli.errors import CommandError
from holdfast_proto.v1.recorder_pb2 import RecorderDump

_MOST_FILES = 100_000
_LARGEST_STACKS_BYTES = 16 << 20
_STACKS = re.compile(r"stack|py-?spy|traceback", re.IGNORECASE)
_RANK_WORD = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_LAST_NUMBER = re.compile(
    r"(\d+)(?:\.(?:json|pkl|pickle|txt|log|dump|trace|gz|flight_recorder\w*|stacks?))*$", re.IGNORECASE
)
_NO_DUMPS = frozenset((".toml", ".md", ".log", ".yaml", ".yml", ".py"))
_OF_INCIDENTS = re.compile(r"rank-\d+\.(black_box|exit)\.json|node-.*\.findings\.json|(incident|core)\.json|.*\.binpb")
"""Other files of an incident of Holdfast: black boxes, exits and what the nodes say."""
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Dumps:
    """What a folder holds."""

    dumps: dict[int, RecorderDump] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """One line for each file that looks like a dump and is none, or that does not belong to the others."""
    written_ns: list[int] = field(default_factory=list)
    """When the files of dumps were written, wall clock."""


def read_folder(folder: Path, *, without: Path | None = None) -> Dumps:
    """Return all dumps of one job in ``folder`` and below.

    ``without``: a folder below it that is left out. Raises CommandError if there is no dump, or something cannot be
    read.
    """
    if not folder.is_dir():
        raise CommandError(f"{folder} is no folder: name the one that holds one dump for each rank")
    found = Dumps()
    try:
        files = [file for path in _files(folder, without) if (file := _read(path, folder, found)) is not None]
    except OSError as error:
        raise CommandError(f"cannot read {error.filename or folder}: {error.strerror or error}") from None
    kept, left_out = of_one_job(files)
    found.dumps.update({rank: file.dump for rank, file in kept.items()})
    found.refused.extend(left_out)
    if not found.dumps:
        refused = f" ({found.refused[0]})" if found.refused else ""
        place = "torch writes them where TORCH_FR_DUMP_TEMP_FILE says"
        raise CommandError(f"{folder} holds no dump of a Flight Recorder{refused}: {place}")
    return found


def _files(folder: Path, without: Path | None) -> Iterator[Path]:
    """Yield the files that may be dumps or stacks, those of the folder itself first."""
    paths = sorted(folder.rglob("*"), key=lambda path: (len(path.parts), path))
    if len(paths) > _MOST_FILES:
        raise CommandError(f"{folder} holds more than {_MOST_FILES} files: name the folder of the dumps")
    left_out = without.resolve() if without is not None else None
    for path in paths:
        if left_out is not None and left_out in path.resolve().parents:
            continue
        is_other = path.suffix in _NO_DUMPS or path.name.startswith(".") or _OF_INCIDENTS.fullmatch(path.name)
        # Whatever is no file, such as a pipe of torch, would block the reader.
        if path.is_file() and not is_other:
            yield path


def _read(path: Path, folder: Path, found: Dumps) -> DumpFile | None:
    """Return the dump in a file. Stacks go into ``found``, and so does the reason why something is no dump."""
    name = printable(str(path.relative_to(folder)))
    rank = _rank_of(path)
    if _STACKS.search(name):
        is_text = path.suffix != ".json" and path.stat().st_size <= _LARGEST_STACKS_BYTES
        if rank is not None and rank <= HIGHEST_RANK and rank not in found.stacks and is_text:
            found.stacks[rank] = path.read_text(errors="replace")
        return None
    if path.suffix == ".txt":
        return None
    try:
        dump = read_dump(_content(path))
    except NoDumpError as error:
        found.refused.append(f"{name}: {error}")
        return None
    if rank is None:
        found.refused.append(f"{name}: its name has no rank in it, as in rank-3.json")
        return None
    if rank > HIGHEST_RANK:
        found.refused.append(f"{name}: {rank} is too large for a rank")
        return None
    found.written_ns.append(path.stat().st_mtime_ns)
    return DumpFile(rank, name, dump)


def _content(path: Path) -> bytes:
    if path.stat().st_size > LARGEST_DUMP_BYTES:
        raise NoDumpError(f"it is larger than {LARGEST_DUMP_BYTES >> 20} MiB")
    data = path.read_bytes()
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.open(path) as unpacked:
            data = unpacked.read(LARGEST_DUMP_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise NoDumpError(f"it cannot be unpacked: {error}") from None
    if len(data) > LARGEST_DUMP_BYTES:
        raise NoDumpError(f"unpacked, it is larger than {LARGEST_DUMP_BYTES >> 20} MiB")
    return data


def _rank_of(path: Path) -> int | None:
    """Return the rank in a file's name: after the word "rank", else the number at its end."""
    found = _RANK_WORD.search(path.name) or _LAST_NUMBER.search(path.name)
    return int(found[1]) if found is not None and len(found[1]) < 8 else None
