"""The machine on which the parts run: its GPU, driver, and the versions of what they use.

Asked in a process of its own, so that the program itself never touches the GPU.
"""

import importlib.metadata
import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass

_ASK_LIMIT_S = 120.0
_PACKAGES = ("triton", "torchao")


@dataclass(frozen=True)
class Machine:
    """What the figures of a report belong to."""

    gpus: tuple[str, ...]
    """Names of the GPUs that torch sees; empty without one."""
    driver: str
    versions: dict[str, str]
    """Versions by name: Python, torch, CUDA, NCCL and others."""

    @property
    def has_gpu(self) -> bool:
        """Whether torch sees a GPU."""
        return bool(self.gpus)

    @classmethod
    def here(cls) -> "Machine":
        """Ask a new process. Raises RuntimeError if it does not answer: a driver that hangs is no missing GPU."""
        command = [sys.executable, "-m", "benchmarks.gpu.machine"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_LIMIT_S, check=True)
            plain = json.loads(done.stdout.splitlines()[-1])
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"torch cannot be asked for GPUs: {error.stderr.strip()[-500:]}") from None
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"torch did not name the GPUs within {_ASK_LIMIT_S:g} s: check the driver") from None
        return cls(tuple(plain["gpus"]), plain["driver"], plain["versions"])


def describe() -> Machine:
    """Ask torch and the driver in this process."""
    import torch

    count = torch.cuda.device_count()
    gpus = tuple(torch.cuda.get_device_name(index) for index in range(count))
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    if gpus:
        versions["CUDA"] = str(torch.version.cuda)
        versions["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return Machine(gpus, _driver() if gpus else "", versions)


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
        return lines[0].strip() if lines else "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown: nvidia-smi does not answer"


if __name__ == "__main__":
    print(json.dumps(asdict(describe())))
