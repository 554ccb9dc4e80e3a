"""Places for checkpoints that are stores in memory, some of which fail on purpose."""

import itertools
import random
import uuid
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints
from holdfast_checkpoint.store.object_store import ObjectStore
from holdfast_checkpoint.store.retries import Backoff, Retries

QUICK = Backoff(first_s=0.001, longest_s=0.002, draw=random.Random(0).random)


class WatchedFileSystem:
    """A file system in memory that records what is put, in order, and fails when a test wants it.

    ``fails`` is called with the number of a call and the name of its method. The error that it returns is raised.
    """

    async_impl = False

    def __init__(self) -> None:
        self.inner = MemoryFileSystem(skip_instance_cache=True)
        self.puts: list[str] = []
        self.read_bytes = 0
        self.calls = itertools.count(1)
        self.fails: Any = lambda _number, _method: None
        self.changes: Any = lambda change: change()
        """Function that gets each call that puts or removes something, and makes it or not."""

    def __getattr__(self, method: str) -> Any:
        function = getattr(self.inner, method)
        if method in ("_strip_protocol", "invalidate_cache"):
            return function

        def call(*arguments: Any, **options: Any) -> Any:
            error = self.fails(next(self.calls), method)
            if error is not None:
                raise error
            if method == "pipe_file":
                self.puts.append("/".join(arguments[0].split("/")[-2:]))
            if method in ("pipe_file", "rm_file"):
                return self.changes(lambda: function(*arguments, **options))
            return function(*arguments, **options)

        return call


class Place:
    """Checkpoints in a store in memory, as several nodes open it."""

    def __init__(self, setting: str = "--checkpoints") -> None:
        self.url = f"memory://{uuid.uuid4().hex}/prefix"
        self.files = WatchedFileSystem()
        self._setting = setting

    def open(self) -> ObjectCheckpoints:
        """Return the place as another process would open it."""
        retries = Retries(backoff=QUICK)
        return ObjectCheckpoints(ObjectStore(self.files, self.url, setting=self._setting, retries=retries))

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return sorted(self.open().store.listing())
