"""Finds the dumps of a job in a folder, and the stacks next to them."""

import gc
import gzip
import os
import re
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path

from holdfast_agent.evidence.recorder_dump import (
    CALLS_KEPT,
    HIGHEST_RANK,
    LARGEST_DUMP_BYTES,
    NoDumpError,
    printable,
    read_dump,
)
from holdfast_cli.analysis.one_job import DumpFile, of_one_job
from holdfast_cli.analysis.stack_text import main_thread
from holdfast_cli.errors import CommandError
from holdfast_proto.v1.recorder_pb2 import RecorderDump

_MOST_FILES = 100_000
_LARGEST_STACKS_BYTES = 16 << 20
_STACKS = re.compile(r"stack|py-?spy|traceback", re.IGNORECASE)
_NO_DUMPS = frozenset((".toml", ".md", ".log", ".yaml", ".yml", ".py"))
_OF_INCIDENTS = re.compile(
    r"rank-\d+\.(black_box|exit|stack)\.json|node-.*\.findings\.json|(incident|core)\.json|.*\.binpb"
)
"""Other files of an incident of Holdfast: black boxes, exits, stacks that are there as texts, and what nodes say."""
_TORCHS_PIPE = ".pipe"
"""End of the names of pipes that torch makes for orders to dump."""
_GZIP = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Dumps:
    """What a folder holds."""

    dumps: dict[int, RecorderDump] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """One line for each file that looks like a dump or stacks and is none, or that does not belong to the others."""
    written_ns: list[int] = field(default_factory=list)
    """When the files of dumps were written, wall clock."""


def read_folder(folder: Path, *, without: Path | None = None, note: Callable[[int, int], None] | None = None) -> Dumps:
    """Return all dumps of one job in ``folder`` and below.

    ``without``: a folder below it that is left out. ``note`` gets the number of files that were read, and of all, after
    each one. Raises CommandError if there is no dump, or something cannot be read.
    """
    if not folder.is_dir():
        raise CommandError(f"{folder} is no folder: name the one that holds one dump for each rank")
    found = Dumps()
    files = []
    try:
        paths = list(_files(folder, without, found))
        with _reader(len(paths)) as read_all:
            contents = read_all(partial(_content_of, folder), paths)
            for number, (path, content) in enumerate(zip(paths, contents, strict=True), start=1):
                if (file := _take(path, content, folder, found)) is not None:
                    files.append(file)
                if note is not None:
                    note(number, len(paths))
    except BrokenProcessPool:
        raise CommandError(f"a process that read {folder} was killed: it may need more memory than there is") from None
    except OSError as error:
        raise CommandError(f"cannot read {error.filename or folder}: {error.strerror or error}") from None
    kept, left_out = of_one_job(files)
    found.dumps.update({rank: file.dump for rank, file in kept.items()})
    found.refused.extend(map(printable, left_out))
    if not found.dumps:
        refused = f" ({found.refused[0]})" if found.refused else ""
        place = "torch writes them where TORCH_FR_DUMP_TEMP_FILE says"
        raise CommandError(f"{folder} holds no dump of a Flight Recorder{refused}: {place}")
    return found


def _files(folder: Path, without: Path | None, found: Dumps) -> Iterator[Path]:
    """Yield the files that may be dumps or stacks, those of the folder itself first.

    The reason why something with a rank in its name is no file goes into ``found``.
    """
    paths = sorted(folder.rglob("*"), key=lambda path: (len(path.parts), path))
    if len(paths) > _MOST_FILES:
        raise CommandError(f"{folder} holds more than {_MOST_FILES} files: name the folder of the dumps")
    left_out = without.resolve() if without is not None else None
    for path in paths:
        resolved = path.resolve()
        if left_out is not None and left_out in (resolved, *resolved.parents):
            continue
        if path.suffix in _NO_DUMPS or path.name.startswith(".") or _OF_INCIDENTS.fullmatch(path.name):
            continue
        # Whatever is no file, such as a pipe of torch, would block the reader.
        if path.is_file():
            yield path
        elif reason := (_why_no_folder(path) if path.is_dir() else _why_no_file(path)):
            found.refused.append(f"{printable(str(path.relative_to(folder)))}: {reason}")


def _why_no_folder(path: Path) -> str:
    """Return why what is in a folder is not looked at; empty if it is, or the name is not that of a dump."""
    try:
        is_empty = not any(path.iterdir())
    except PermissionError:
        return "it is a folder that may not be read"
    if path.is_symlink():
        return "it is a link to a folder, and those are not followed"
    return "it is an empty folder" if is_empty and _has_rank(path) else ""


def _why_no_file(path: Path) -> str:
    """Return why something with the name of a dump cannot be read; empty if nobody could take it for a dump."""
    if not _has_rank(path) or path.suffix == _TORCHS_PIPE:
        return ""
    if not path.exists():
        return "it is a link to a file that does not exist"
    if path.is_fifo():
        return "it is a pipe, and no file"
    return "it is a socket, and no file" if path.is_socket() else "it is a device, and no file"


def _has_rank(path: Path) -> bool:
    try:
        rank_in(path.name)
    except NoRankError:
        return False
    return True


_Content = bytes | NoDumpError | None
"""What a file holds: a RecorderDump as bytes, a reason why it is no dump, or nothing that counts as one."""
_ReadAll = Callable[[Callable[[Path], _Content], Iterable[Path]], Iterator[_Content]]
_MANY_FILES = 32
_MOST_READERS = 8
_AT_A_TIME = 4
"""Files that a process reads before it returns what they hold."""


@contextmanager
def _reader(files: int) -> Iterator[_ReadAll]:
    """Yield what reads files in their order: in this process, or many files in one process for each processor.

    The processes are forks. This program has no threads, and to start others would take as long as to read some dumps.
    """
    processors = min(_MOST_READERS, len(os.sched_getaffinity(0)))
    if files < _MANY_FILES or processors < 2:
        yield map
        return
    with ProcessPoolExecutor(processors, get_context("fork"), _begin_reading) as pool:
        try:
            yield partial(pool.map, chunksize=_AT_A_TIME)
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_reading() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    gc.disable()  # a dump is a hundred thousand objects without a circle


def _content_of(folder: Path, path: Path) -> _Content:
    if path.suffix == ".txt" or _is_stack(path, folder):
        return None
    try:
        dump = read_dump(_content(path))
    except NoDumpError as error:
        return error
    # Nothing here uses these. They are a quarter of what all dumps of a large job take in memory.
    for call in dump.calls:
        call.ClearField("output_sizes")
    for call in dump.calls[:-CALLS_KEPT]:
        call.ClearField("frame")
    return dump.SerializeToString()


def _is_stack(path: Path, folder: Path) -> bool:
    return bool(_STACKS.search(printable(str(path.relative_to(folder)))))


def _take(path: Path, content: _Content, folder: Path, found: Dumps) -> DumpFile | None:
    """Return the dump in a file. Stacks go into ``found``, and so does the reason why something is no dump."""
    name = printable(str(path.relative_to(folder)))
    try:
        if content is None:
            if _is_stack(path, folder):
                found.stacks.update(_stacks_in(path, found.stacks))
            return None
        if isinstance(content, NoDumpError):
            raise content
        rank = _rank_of(path)
    except (NoDumpError, NoRankError) as error:
        found.refused.append(f"{name}: {error}")
        return None
    found.written_ns.append(path.stat().st_mtime_ns)
    return DumpFile(rank, name, RecorderDump.FromString(content))


def _stacks_in(path: Path, known: Mapping[int, str]) -> dict[int, str]:
    """Return the text of a rank's stacks. Raises NoDumpError or NoRankError if they cannot be used."""
    if path.stat().st_size > _LARGEST_STACKS_BYTES:
        raise NoDumpError(f"it is larger than {_LARGEST_STACKS_BYTES >> 20} MiB, and no stacks are")
    text = path.read_text(errors="replace")
    if main_thread(text) is None:
        raise NoDumpError("it shows no stack of a main thread, as the texts of py-spy dump and faulthandler do")
    rank = _rank_of(path)
    if rank in known:
        raise NoDumpError(f"another file has the stacks of rank {rank}")
    return {rank: text}


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_DUMP_BYTES:
            raise NoDumpError(f"it is larger than {LARGEST_DUMP_BYTES >> 20} MiB")
        data = file.read(size)
    if not data.startswith(_GZIP):
        return data
    try:
        # Unpacked twice, at first to count: a small file that becomes a large one takes no memory.
        with gzip.open(BytesIO(data)) as counted:
            room = LARGEST_DUMP_BYTES
            while room >= 0 and (piece := counted.read(_PIECE_BYTES)):
                room -= len(piece)
        if room < 0:
            raise NoDumpError(f"unpacked, it is larger than {LARGEST_DUMP_BYTES >> 20} MiB")
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise NoDumpError(f"it cannot be unpacked: {error}") from None


def _rank_of(path: Path) -> int:
    rank = rank_in(path.name)
    if rank > HIGHEST_RANK:
        raise NoRankError(f"{rank} is too large for a rank")
    return rank


_RANK_WORD = re.compile(
    r"(?:(?<![A-Za-z])(?P<kind>local|node|group|role|dp|tp|pp|cp|ep|sp|mp|fsdp|hsdp)[-_ ]?)?rank[-_ ]?(?P<number>\d+)",
    re.IGNORECASE,
)
"""A rank within a node, or within one dimension of a mesh, is another one than the rank in the whole job."""
_LAST_NUMBER = re.compile(
    r"(\d+)(?:\.(?:json|pkl|pickle|txt|log|dump|trace|gz|flight_recorder\w*|stacks?))*$", re.IGNORECASE
)


class NoRankError(ValueError):
    """The name does not say which rank a file is of."""


def rank_in(name: str) -> int:
    """Return the rank in the whole job: the number after the word "rank", else the one at the end.

    Raises NoRankError if there is none, or several.
    """
    found = list(_RANK_WORD.finditer(name))
    ranks = {int(match["number"]) for match in found if match["kind"] is None}
    if not ranks and found:
        raise NoRankError(f"its name has a {found[0]['kind'].lower()} rank alone, which is no rank in the whole job")
    if len(ranks) > 1:
        raise NoRankError(f"its name has several ranks: {', '.join(map(str, sorted(ranks)))}")
    last = _LAST_NUMBER.search(name)
    if not ranks and last is None:
        raise NoRankError("its name has no rank in it, as in rank-3.json")
    return ranks.pop() if ranks or last is None else int(last[1])
