"""Small memory file systems, which only root can mount."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_tmpfs(folder: Path, size: str, *, lazily_unmounted: bool = False) -> Iterator[Path]:
    """Yield a new ``folder`` with a memory file system of a size such as ``1m``. Skip the test if it cannot be mounted.

    At the end no file may be open in it, unless it is ``lazily_unmounted``.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root, in a container that allows it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", *(["--lazy"] if lazily_unmounted else []), str(folder)], check=True)
