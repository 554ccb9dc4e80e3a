"""Pauses in which the rank reads and writes files."""

import os
import subprocess
import threading
import time
from pathlib import Path

import torch

from benchmarks.odd_runs.pause import Pause
from benchmarks.odd_runs.scene import Scene

_WRITE_S = 0.1
_READ_BYTES = 1 << 16
_FILES = 50


class SlowFile:
    """A file on a disk that is slow until the pause is over."""

    def __init__(self, path: Path, pause: Pause) -> None:
        self._file = path.open("wb")
        self._pause = pause

    def write(self, data: bytes) -> int:
        """Write, flush, and wait as a slow disk would."""
        written = self._file.write(data)
        if self._pause.is_active():
            self._file.flush()
            os.fdatasync(self._file.fileno())
            time.sleep(_WRITE_S)
        return written

    def flush(self) -> None:
        """Do nothing, because every write is flushed."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def save(scene: Scene) -> None:
    """Save a state with ``torch.save`` to a slow disk."""
    _save(scene.pause, scene.folder / f"user-{scene.rank}.pt")


def save_in_a_thread(scene: Scene) -> None:
    """Save in a thread, and wait for it."""
    thread = threading.Thread(target=_save, args=(scene.pause, scene.folder / f"user-{scene.rank}.pt"), daemon=True)
    thread.start()
    thread.join()


def save_through_a_pipe(scene: Scene) -> None:
    """Pipe bytes through a child that compresses them to a file, a little at a time."""
    with (scene.folder / f"user-{scene.rank}.gz").open("wb") as target:
        child = subprocess.Popen(["gzip", "-1"], stdin=subprocess.PIPE, stdout=target)
        assert child.stdin is not None
        while scene.pause.is_active():
            child.stdin.write(os.urandom(_READ_BYTES))
            child.stdin.flush()
            time.sleep(_WRITE_S)
        child.stdin.close()
        child.wait()


def small_files(scene: Scene) -> None:
    """Write many small files."""
    folder = scene.folder / f"small-{scene.rank}"
    folder.mkdir(exist_ok=True)
    number = 0
    while scene.pause.is_active():
        number += 1
        (folder / str(number % _FILES)).write_text(str(number))
        time.sleep(0.005)


def reread(scene: Scene) -> None:
    """Read a file in small pieces, as from a slow disk."""
    path = scene.folder / f"data-{scene.rank}.bin"
    path.write_bytes(bytes(8 * _READ_BYTES))
    while scene.pause.is_active():
        with path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES) and scene.pause.is_active():
                time.sleep(_WRITE_S)


def _save(pause: Pause, path: Path) -> None:
    state = {f"layer {number}": torch.ones(8, 8) for number in range(8)}
    while pause.is_active():
        file = SlowFile(path, pause)
        torch.save(state, file)  # type: ignore[arg-type]
        file.close()
