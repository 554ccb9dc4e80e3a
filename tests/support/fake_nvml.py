"""Builds the stand-in for NVML's library and says what its GPUs do. The real pynvml loads it."""

import os
import subprocess
from pathlib import Path

from tests.support.programs import C_COMPILER, program

SOURCE = Path(__file__).with_name("fake_nvml.c")
BUS_IDS = [f"0000:{0x41 + gpu:02x}:00.0" for gpu in range(8)]
"""PCI addresses of its GPUs, as the kernel writes them."""


class FakeNvml:
    """GPUs that do what a test writes into a file."""

    def __init__(self, folder: Path, gpus: int) -> None:
        compiler = program(*C_COMPILER)
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self.folder = folder
        self._state = folder / "state"
        self._values: dict[str, str] = {"all.gpus": str(gpus)}
        self._write()

    def set(self, gpu: int | str, **values: object) -> None:
        """Set values of a GPU, or of the driver (``all``). None removes one."""
        for name, value in values.items():
            self._values.pop(f"{gpu}.{name}", None)
            if value is not None:
                self._values[f"{gpu}.{name}"] = str(value)
        self._write()

    def _write(self) -> None:
        new = self._state.with_suffix(".new")
        new.write_text("".join(f"{name} {value}\n" for name, value in self._values.items()))
        new.replace(self._state)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process finds these GPUs."""
        paths = [str(self.folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": ":".join(paths), "FAKE_NVML": str(self._state)}
