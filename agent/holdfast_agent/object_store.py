"""Whole objects in a store that fsspec reaches: put and proved, read, listed, removed. Every call is tried again.

A put makes an object appear whole or not at all, so that nothing is ever renamed.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast_agent.priority import lower_priority
from holdfast_agent.retries import Retries
from holdfast_agent.store_errors import describe, is_final, missing_package
from holdfast_proto.checkpoint.durable import NewFile, make_directory
from holdfast_proto.checkpoint.errors import CheckpointError, CheckpointUnreadable, write_errors

RANGE_BYTES = 16 << 20
"""Read at once. What has arrived of a download before an error is not fetched again."""

_CONNECTIONS = 8
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"max_concurrency": 2},  # parts of 50 MiB that an upload holds in memory
    "file": {"auto_mkdir": True},
}
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoredObject:
    """What a listing says about an object."""

    nbytes: int
    version: str
    """Differs when the object was put again with other contents."""


class ObjectStore:
    """The objects below ``url``, by their names relative to it.

    ``setting`` is the option that has named it, for messages. Every method may be called from any thread, and raises
    CheckpointError if the store cannot be used, in one line that names the setting. Credentials are found by fsspec.
    """

    def __init__(self, filesystem: Any, url: str, *, setting: str, retries: Retries | None = None) -> None:
        self.url = url
        self.setting = setting
        self.retries = retries or Retries()
        self._filesystem = filesystem
        self._root = str(filesystem._strip_protocol(url)).rstrip("/")

    def listing(self, folder: str = "") -> dict[str, StoredObject]:
        """Return all objects below ``folder``, by name."""
        found = self._try(lambda: self._find(folder))
        return {
            str(path).removeprefix(f"{self._root}/"): StoredObject(int(info["size"]), _version(info))
            for path, info in found.items()
            if info["type"] == "file"
        }

    def read(self, name: str) -> bytes:
        """Return an object. Raises CheckpointUnreadable if there is none."""
        return self.read_range(name, None, None)

    def read_range(self, name: str, start: int | None, end: int | None) -> bytes:
        """Return bytes of an object from ``start`` to before ``end``. Raises CheckpointUnreadable if there is none."""
        try:
            data = self._attempt(lambda: self._filesystem.cat_file(self._path(name), start=start, end=end))
        except FileNotFoundError as error:
            raise CheckpointUnreadable(f"{self.url}/{name}: No such object") from error
        return bytes(data)

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        """Return several objects, in this order. Raises CheckpointUnreadable if one is not there."""
        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            return list(threads.map(self.read, names))

    def write(self, name: str, data: bytes) -> None:
        """Put a small object and prove it by reading it."""

        def put() -> None:
            self._filesystem.pipe_file(self._path(name), data)
            if self._filesystem.cat_file(self._path(name)) != data:
                raise OSError(f"{name} does not read back as it was put")

        self._try(put)

    def upload(self, source: Path, name: str) -> None:
        """Put a file, in several parts where it is large, and prove it.

        By its size and its MD5 sum where the store tells one, else by reading it.
        """

        def put() -> None:
            self._filesystem.put_file(str(source), self._path(name))
            if not self._matches(source, name):
                raise OSError(f"{name} does not read back as it was put")

        self._try(put)

    def is_copy(self, source: Path, name: str) -> bool:
        """Whether an object, which is there, has the bytes of a file."""
        return self._try(lambda: self._matches(source, name))

    def download(self, name: str, nbytes: int, target: Path) -> None:
        """Fetch an object of ``nbytes`` into a file, which appears when it is whole.

        Raises CheckpointUnreadable if there is none of this size.
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
        """Remove objects, one after the other; one that is not there is fine."""
        for name in names:
            try:
                self._attempt(lambda name=name: self._filesystem.rm_file(self._path(name)))  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _find(self, folder: str) -> dict[str, dict[str, Any]]:
        self._filesystem.invalidate_cache()
        try:
            return dict(self._filesystem.find(self._path(folder), detail=True))
        except FileNotFoundError:
            return {}

    def _matches(self, source: Path, name: str) -> bool:
        info = self._filesystem.info(self._path(name))
        if int(info["size"]) != source.stat().st_size:
            return False
        told = _MD5.fullmatch(str(info.get("ETag", "")))
        # What is encrypted or was put in parts has a sum of its own kind there.
        return (told is not None and told[1] == _md5(source)) or self._reads_as(source, name)

    def _reads_as(self, source: Path, name: str) -> bool:
        start = 0
        for data in _ranges(source):
            if self._filesystem.cat_file(self._path(name), start=start, end=start + len(data)) != data:
                return False
            start += len(data)
        return True

    def _try(self, operation: Callable[[], Result]) -> Result:
        try:
            return self._attempt(operation)
        except FileNotFoundError as error:
            raise CheckpointError(describe(error, self.setting, self.url)) from error

    def _attempt(self, operation: Callable[[], Result]) -> Result:
        """Raises CheckpointError, and FileNotFoundError as it is."""
        try:
            return self.retries.run(operation, is_final=is_final)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise CheckpointError(describe(error, self.setting, self.url)) from error


def open_store(setting: str, url: str, retries: Retries | None = None) -> ObjectStore:
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
    return ObjectStore(filesystem, url.rstrip("/"), setting=setting, retries=retries)


def _version(info: dict[str, Any]) -> str:
    return str([info.get(key) for key in ("size", "ETag", "mtime", "created", "LastModified", "updated")])


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for data in _ranges(path):
        digest.update(data)
    return digest.hexdigest()


def _ranges(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(RANGE_BYTES):
            yield data
