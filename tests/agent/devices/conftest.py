"""A machine with GPUs for the tests: the stand-in for NVML, and a file system with the driver's files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_nvml import FakeNvml


class Machine:
    """The root of a file system with NVIDIA's driver and the kernel's log."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir(parents=True)
        (root / "dev/nvidiactl").touch()
        (root / "dev/kmsg").touch()
        self._log = os.open(root / "dev/kmsg", os.O_WRONLY | os.O_APPEND)

    def log(self, message: str) -> None:
        """Write a record as the kernel would: a message may be read in one piece only."""
        os.write(self._log, f"4,900,81233451,-;{message}\n".encode())

    def close(self) -> None:
        os.close(self._log)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path / "root")
    yield found
    found.close()


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs that this process and its children find."""
    found = FakeNvml(tmp_path / "nvml", gpus=2)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found
