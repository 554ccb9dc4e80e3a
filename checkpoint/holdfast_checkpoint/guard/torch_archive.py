"""Reads what torch.save writes: a zip file without compression, with a pickle and one record for each storage.

Before version 1.6, torch wrote pickles and storages one after the other.
"""

import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast_checkpoint.guard.damage import DamagedFileError, printable
from holdfast_checkpoint.guard.finite_values import item_bytes, tensor_bytes
from holdfast_checkpoint.guard.inert_pickle import (
    LARGEST_PICKLE_BYTES,
    InertTensor,
    load_inert,
    load_pickles,
    tensors_in,
)
from holdfast_checkpoint.guard.paced_reading import PacedFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"PK\x03\x04"
_OLD_MAGIC = 0x1950A86A20F9469CFC6C
"""First number in a file of torch before 1.6: MAGIC_NUMBER in torch/serialization.py."""
_OLD_COUNT_BYTES = 8
"""Bytes before each storage there: the number of its elements."""
_LOCAL_HEADER_BYTES = 30
_PICKLE = "data.pkl"


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    """One record of an archive."""

    header_offset: int
    size: int
    crc: int
    """CRC32 of its bytes; 0: torch was told not to compute it."""


class TorchArchive:
    """An archive, which is a whole file or a part of one. Raises DamagedFileError if it is none."""

    def __init__(self, file: PacedFile, start: int = 0, length: int | None = None) -> None:
        self._file = file
        self._start = start
        length = file.size - start if length is None else length
        part = _Part(file, start, length)
        try:
            with zipfile.ZipFile(part) as archive:
                listed = archive.infolist()
        except zipfile.BadZipFile:
            if part.error is not None:
                raise part.error from None
            raise DamagedFileError("it has no complete zip directory at its end: it is cut off or damaged") from None
        except (ValueError, NotImplementedError, OverflowError, EOFError):
            raise DamagedFileError("its zip directory is damaged") from None
        pickles = [each.filename for each in listed if _is_pickle(each.filename)]
        self._prefix = pickles[0].removesuffix(_PICKLE) if pickles else None
        self.records: dict[str, ArchiveRecord] = {}
        """By name, without the folder that all of them have in common."""
        self.is_plain = all(each.compress_type == zipfile.ZIP_STORED for each in listed)
        """Whether no record is compressed. torch compresses none."""
        if len(pickles) > 1 or (pickles and not self.is_plain):
            raise DamagedFileError("its pickle is compressed or not the only one, which torch never writes")
        for each in listed:
            if each.header_offset + _LOCAL_HEADER_BYTES + each.compress_size > length:
                raise DamagedFileError(f"its record {printable(each.filename)} reaches beyond its end")
            name = each.filename.removeprefix(self._prefix or "")
            self.records[name] = ArchiveRecord(each.header_offset, each.file_size, each.CRC)
        self.modules: set[str] = set()
        """Modules of the classes of other packages that its pickle names."""
        self.root: Any = load_inert(self._pickle(), self.modules) if pickles else None
        """What was saved, with inert objects; None if this is no archive of torch."""

    def tensors(self) -> Iterator[tuple[str, InertTensor]]:
        """Yield the path and the description of each tensor. Raises DamagedFileError if its storage is missing."""
        for path, tensor in tensors_in(self.root):
            record = self.records.get(f"data/{tensor.storage.key}")
            needed = tensor.offset * item_bytes(tensor.dtype) + tensor_bytes(tensor.dtype, tensor.shape)
            if record is None:
                raise DamagedFileError(f"the storage of tensor {printable(path)} is missing")
            if tensor.is_dense and needed > record.size:
                raise DamagedFileError(f"tensor {printable(path)} is longer than its storage")
            yield path, tensor

    def place(self, tensor: InertTensor) -> tuple[int, int]:
        """Return the first byte of a dense tensor in the file, and its bytes."""
        begin = self._data_offset(self.records[f"data/{tensor.storage.key}"])
        return begin + tensor.offset * item_bytes(tensor.dtype), tensor_bytes(tensor.dtype, tensor.shape)

    def check_crcs(self) -> None:
        """Read all records. Raises DamagedFileError if one differs from its CRC."""
        for name, record in self.records.items():
            if record.crc and self.is_plain:
                crc = 0
                for piece in self._file.pieces(self._data_offset(record), record.size):
                    crc = zlib.crc32(piece, crc)
                if crc != record.crc:
                    raise DamagedFileError(f"its record {printable(name)} differs from its CRC")

    def _pickle(self) -> bytes:
        record = self.records[_PICKLE]
        if record.size > LARGEST_PICKLE_BYTES:
            raise DamagedFileError(
                f"its pickle has {record.size} bytes: {LARGEST_PICKLE_BYTES} is the most that is read"
            )
        data = self._file.read(self._data_offset(record), record.size)
        if record.crc and zlib.crc32(data) != record.crc:
            raise DamagedFileError(f"its record {_PICKLE} differs from its CRC")
        return data

    def _data_offset(self, record: ArchiveRecord) -> int:
        """Return the first byte of a record in the file: names and padding before it have any length."""
        begin = self._start + record.header_offset
        header = self._file.read(begin, _LOCAL_HEADER_BYTES)
        if not header.startswith(MAGIC):
            raise DamagedFileError(f"no record begins at byte {begin}, where its zip directory says so")
        return (
            begin
            + _LOCAL_HEADER_BYTES
            + int.from_bytes(header[26:28], "little")
            + int.from_bytes(header[28:], "little")
        )


def read_old_file(
    file: PacedFile, modules: set[str], start: int = 0, length: int | None = None
) -> list[tuple[str, InertTensor]]:
    """Return path and description of each tensor in a file of torch before 1.6; of another pickle, none.

    Torch wrote a number, its version, the machine, the object and the names of storages. The storages follow.
    Raises DamagedFileError. ``modules`` takes the modules of classes of other packages.
    """
    length = file.size - start if length is None else length
    stream = io.BufferedReader(_Part(file, start, length))
    if load_pickles(stream, length, 1, modules) != [_OLD_MAGIC]:
        return []
    _, _, root, _ = load_pickles(stream, length, 4, modules)
    tensors = list(tensors_in(root))
    ends: dict[str, int] = {}
    for _, tensor in tensors:
        end = tensor.offset * item_bytes(tensor.dtype) + tensor_bytes(tensor.dtype, tensor.shape)
        ends[tensor.storage.key] = max(end, ends.get(tensor.storage.key, 0)) if tensor.is_dense else 0
    needed = stream.tell() + sum(_OLD_COUNT_BYTES + end for end in ends.values())
    if needed > length:
        raise DamagedFileError(f"it ends at byte {length}, and byte {needed} is needed")
    return tensors


def _is_pickle(name: str) -> bool:
    return name == _PICKLE or name.endswith(f"/{_PICKLE}")


class _Part(io.RawIOBase):
    """A part of a file as zipfile and pickle want it."""

    def __init__(self, file: PacedFile, start: int, length: int) -> None:
        self._file, self._start, self._length = file, start, length
        self._position = 0
        self.error: OSError | None = None
        """Error of the disk or the network: zipfile would call it a bad file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise OSError("before the begin")  # zipfile takes this for "no directory"
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "Buffer", /) -> int:
        view = memoryview(buffer)
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        rest = max(0, self._length - self._position)
        count = rest if size is None or size < 0 else min(size, rest)
        try:
            data = self._file.read(self._start + self._position, count)
        except OSError as error:
            self.error = error
            raise
        self._position += count
        return data
