"""Places of checkpoints whose files vanish and return, and processes that die at a change of them."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast_checkpoint.format.manifest import MANIFEST

if TYPE_CHECKING:
    from tests.support.object_places import Place


class CrashError(BaseException):
    """The process dies here. None of our code may catch this error."""


@dataclass
class Crashes:
    """A countdown of calls that change something. The process dies at its end, and every later call fails."""

    left: int | None = None

    def call(self, change: Callable[[], Any], generator: random.Random) -> Any:
        """Make a change, or die before or after it."""
        if self.left is None:
            return change()
        self.left -= 1
        if self.left == 0 and generator.random() < 0.5:
            change()
        if self.left <= 0:
            raise CrashError
        return change()


class Storage(Protocol):
    """A place of checkpoints from which files vanish and to which they return."""

    def files(self) -> list[str]:
        """Return the names that can vanish, in a fixed order: files of committed checkpoints, and whole folders."""

    def vanish(self, name: str) -> bool:
        """Take a file or folder away; return False if it is not there."""

    def come_back(self) -> list[str]:
        """Bring everything back and return its names. Files that have replaced something since then stay."""


@contextmanager
def whole(storage: Storage) -> Iterator[None]:
    """Bring everything back for the block, and take it away again at its end."""
    away = storage.come_back()
    yield
    for name in away:
        storage.vanish(name)


@dataclass
class Folder:
    """A folder."""

    path: Path
    vanished: list[tuple[str, Path]] = field(default_factory=list)
    _moved: int = 0

    def files(self) -> list[str]:
        """Return the names."""
        found = [path for path in self.path.rglob("*") if path.name.startswith("rank-") or path.name == MANIFEST]
        folders = [path for path in self.path.rglob("step-*") if any(path.iterdir())]
        return sorted(str(path.relative_to(self.path)) for path in (*found, *folders))

    def vanish(self, name: str) -> bool:
        """Move a file or folder elsewhere."""
        path = self.path / name
        if not path.exists():
            return False
        self._moved += 1
        elsewhere = self.path.with_name(f"elsewhere-{self._moved}")
        shutil.move(path, elsewhere)
        self.vanished.append((name, elsewhere))
        return True

    def come_back(self) -> list[str]:
        """Move everything back. What vanished last returns first."""
        names = [name for name, _ in self.vanished]
        while self.vanished:
            name, elsewhere = self.vanished.pop()
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                shutil.move(elsewhere, path)
            elif path.is_dir():
                for entry in elsewhere.iterdir():
                    if not (path / entry.name).exists():
                        shutil.move(entry, path / entry.name)
        return names


class Bucket:
    """An object store."""

    def __init__(self, place: "Place") -> None:
        self._place = place
        self._vanished: list[tuple[str, dict[str, bytes]]] = []
        """Names that vanished, with their objects."""

    def files(self) -> list[str]:
        """Return the names."""
        names = [name for name in self._place.names() if "step-" in name]
        return sorted({*names, *(name.rpartition("/")[0] for name in names)})

    def vanish(self, name: str) -> bool:
        """Remove an object, or all below a prefix, without the client that the run uses."""
        gone = {one: self._file(one) for one in self._place.names() if one == name or one.startswith(f"{name}/")}
        objects = {one: self._place.files.inner.cat_file(path) for one, path in gone.items()}
        for path in gone.values():
            self._place.files.inner.rm_file(path)
        if objects:
            self._vanished.append((name, objects))
        return bool(objects)

    def come_back(self) -> list[str]:
        """Put everything back. What vanished last returns first."""
        names = [name for name, _ in self._vanished]
        while self._vanished:
            _, objects = self._vanished.pop()
            there = self._place.names()
            for name, data in objects.items():
                if name not in there:
                    self._place.files.inner.pipe_file(self._file(name), data)
        return names

    def _file(self, name: str) -> str:
        return f"{self._place.url.removeprefix('memory:/')}/{name}"
