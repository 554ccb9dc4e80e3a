"""Whole objects in a store that fsspec reaches: puts and proves, reads, lists, and removes them, with retries.

Object stores cannot rename. So the order of puts takes the place of the rename: a shard counts once its index is there,
and the index is put after the shard is proved to be whole. A retry puts the same object again, which is safe because
nothing reads it before.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast_base.processes import lower_priority
from holdfast_checkpoint.checkpoint_errors import (
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
    write_errors,
)
from holdfast_checkpoint.format.durable import NewFile, make_directory
from holdfast_checkpoint.store.multipart import PART_BYTES, MultipartUploads, etag_of, ranges
from holdfast_checkpoint.store.retries import Retries, describe, is_final, missing_package

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # imported on use: only those who have an object store need the package

RANGE_BYTES = 16 << 20
"""Bytes of one read. After an error, a download continues with the range that failed."""

_CONNECTIONS = 8
_OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"auto_mkdir": True},
}
_S3 = ("s3", "s3a")

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing."""

    nbytes: int
    version: str
    """Text that changes when the object is put again with other contents."""


class Bandwidth:
    """Limits what all uploads of a node send together: a token bucket that fills at ``bytes_per_s``; 0 means no limit.

    Its level may fall below zero, and any thread may use it.

    A sender takes tokens for a whole piece and then waits until the debt of the senders before it is paid. So a piece
    may be larger than a second's worth, and threads are served in the order of their calls. Nothing is saved up: after
    a pause one piece goes out immediately, the next one at the rate again.
    """

    def __init__(self, bytes_per_s: float = 0.0, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock_s = clock_s
        self._paid_at_s = clock_s()
        """Time at which everything that was taken is paid."""
        self._lock = threading.Lock()

    def take_s(self, nbytes: int) -> float:
        """Take tokens for ``nbytes`` and return the seconds to wait before sending them."""
        if not self._bytes_per_s:
            return 0.0
        with self._lock:
            now_s = self._clock_s()
            begin_s = max(self._paid_at_s, now_s)
            self._paid_at_s = begin_s + nbytes / self._bytes_per_s
            return begin_s - now_s


class ObjectStore:
    """The objects below ``url``, by their names relative to it.

    ``setting`` is the option that names the store, for messages. Every method may be called from any thread, and raises
    CheckpointError if the store cannot be used, in one line that names the setting. fsspec finds the credentials.
    Uploads stay within ``bandwidth``.
    """

    def __init__(
        self,
        filesystem: "AbstractFileSystem",
        url: str,
        *,
        setting: str,
        retries: Retries | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.url = url
        self.setting = setting
        self.retries = retries or Retries()
        self._bandwidth = bandwidth or Bandwidth()
        self._filesystem = filesystem
        self._root = str(filesystem._strip_protocol(url)).rstrip("/")
        is_s3 = url.partition("://")[0] in _S3
        self._multipart = MultipartUploads(filesystem, self._pace) if is_s3 else None

    def below(self, folder: str) -> "ObjectStore":
        """Return a folder of this store as a store, with the same limits and counters."""
        return ObjectStore(
            self._filesystem,
            f"{self.url}/{folder}",
            setting=self.setting,
            retries=self.retries,
            bandwidth=self._bandwidth,
        )

    def listing(self, folder: str = "") -> dict[str, StoredObject]:
        """Return all objects below ``folder``, by name."""
        found = self._try(lambda: self._find(folder))
        return {
            str(path).removeprefix(f"{self._root}/"): StoredObject(int(info["size"]), _version(info))
            for path, info in found.items()
            if info["type"] == "file"
        }

    def read(self, name: str) -> bytes:
        """Return the bytes of an object. Raises CheckpointUnavailable if there is none."""
        return self.read_range(name, None, None)

    def read_range(self, name: str, start: int | None, end: int | None) -> bytes:
        """Return the bytes ``start`` to ``end`` (exclusive) of an object. Raises CheckpointUnavailable without one."""
        try:
            data = self._attempt(lambda: self._filesystem.cat_file(self._path(name), start=start, end=end))
        except FileNotFoundError as error:
            raise CheckpointUnavailable(f"{self.url}/{name}: No such object") from error
        return bytes(data)

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        """Return the bytes of several objects, in this order. Raises CheckpointUnavailable if one is missing."""
        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            return list(threads.map(self.read, names))

    def write(self, name: str, data: bytes) -> None:
        """Put a small object and read it back."""

        def put() -> None:
            self._filesystem.pipe_file(self._path(name), data)
            if not self._reads_as([data], name):
                raise OSError(f"{name} does not read back as it was put")

        self._try(put)

    def upload(self, source: Path, name: str, check: Callable[[], None] = lambda: None) -> None:
        """Put a file and prove it: by its size and the MD5 sum that the store gives, else by reading it back.

        To a store that speaks S3 a large one goes in parts. ``check`` is called before every try, and may raise
        CheckpointError.
        """

        def put() -> None:
            check()
            self._put(source, name)
            if not self._matches(source, name):
                raise OSError(f"{name} does not read back as it was put")

        self._try(put)

    def is_copy(self, source: Path, name: str) -> bool:
        """Return whether an existing object has the bytes of a file."""
        return self._try(lambda: self._matches(source, name))

    def download(self, name: str, nbytes: int, target: Path) -> None:
        """Fetch an object of ``nbytes`` into a file, which appears once it is whole.

        Raises CheckpointUnavailable if there is none, CheckpointUnreadable if it has another size.
        """
        with write_errors(target.parent):
            make_directory(target.parent)
            with NewFile(target) as new:
                received = 0
                while received < nbytes:
                    data = self.read_range(name, received, min(received + RANGE_BYTES, nbytes))
                    if not data:
                        raise CheckpointUnreadable(f"{self.url}/{name} has {received} bytes, not {nbytes}")
                    new.write(data)
                    received += len(data)
                new.flush()
                new.publish()

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects in this order. A missing one is no error."""
        for name in names:
            try:
                self._attempt(lambda name=name: self._filesystem.rm_file(self._path(name)))  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _put(self, source: Path, name: str) -> None:
        nbytes = source.stat().st_size
        if nbytes <= PART_BYTES:
            self._pace(nbytes)
            self._filesystem.pipe_file(self._path(name), source.read_bytes())
        elif self._multipart is not None:
            self._multipart.put(source, self._path(name))
        else:
            with self._filesystem.open(self._path(name), "wb") as target:
                for data in ranges(source, PART_BYTES):
                    self._pace(len(data))
                    target.write(data)

    def _pace(self, nbytes: int) -> None:
        """Wait until ``nbytes`` may be sent. Raises CheckpointError if the agent ends."""
        if self.retries.closing.wait(self._bandwidth.take_s(nbytes)):
            raise CheckpointError(f"{self.setting} {self.url}: the upload is cut off, because the agent ends")

    def _find(self, folder: str) -> dict[str, dict[str, Any]]:
        self._filesystem.invalidate_cache()
        try:
            return dict(self._filesystem.find(self._path(folder), detail=True))
        except FileNotFoundError:
            return {}

    def _matches(self, source: Path, name: str) -> bool:
        try:
            info = self._filesystem.info(self._path(name))
        except FileNotFoundError:  # another agent has removed it, because it is out of date
            return False
        if int(info["size"]) != source.stat().st_size:
            return False
        # An object that is encrypted, or was put in other parts, has another kind of sum: then its bytes are compared.
        told = str(info.get("ETag", "")).strip('"')
        return (told != "" and told == etag_of(source)) or self._reads_as(ranges(source, RANGE_BYTES), name)

    def _reads_as(self, contents: Iterable[bytes], name: str) -> bool:
        start = 0
        for data in contents:
            try:
                there = self._filesystem.cat_file(self._path(name), start=start, end=start + len(data))
            except FileNotFoundError:
                return False
            if there != data:
                return False
            start += len(data)
        return True

    def _try(self, operation: Callable[[], Result]) -> Result:
        try:
            return self._attempt(operation)
        except FileNotFoundError as error:
            raise CheckpointError(describe(error, self.setting, self.url)) from error

    def _attempt(self, operation: Callable[[], Result]) -> Result:
        """Return what the operation returns. Raises CheckpointError, and FileNotFoundError unchanged."""
        try:
            return self.retries.run(operation, is_final=is_final)
        except (FileNotFoundError, CheckpointError):
            raise
        except Exception as error:
            raise CheckpointError(describe(error, self.setting, self.url)) from error


def open_store(
    setting: str, url: str, retries: Retries | None = None, bandwidth: Bandwidth | None = None
) -> ObjectStore:
    """Return the store below ``url``. Raises CheckpointError if its package is not installed."""
    protocol = url.partition("://")[0]
    try:
        import fsspec

        options = _OPTIONS.get(protocol, {})
        filesystem = fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True, **options)
    except (ImportError, ValueError) as error:
        raise CheckpointError(missing_package(setting, url)) from error
    if filesystem.async_impl:
        filesystem.loop.call_soon_threadsafe(lower_priority)
    return ObjectStore(filesystem, url.rstrip("/"), setting=setting, retries=retries, bandwidth=bandwidth)


def _version(info: dict[str, Any]) -> str:
    return str([info.get(key) for key in ("size", "ETag", "mtime", "created", "LastModified", "updated")])
