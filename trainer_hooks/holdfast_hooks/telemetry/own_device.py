"""Finds the device on which a rank computes, without a call that would set up a GPU.

attach() may come before the model is on its GPU, and before torch has initialised CUDA. So the device is found later:

1. The parameters in the state are on a GPU: that one.
2. torch's allocator has given out memory of one GPU: that one. Of several, the training thread's current one.
3. The first step is over and neither is true: the CPU.

The current device is a property of each thread, and GPU 0 in a new one: only the training thread can ask for its own.
What is called here creates no CUDA context: is_initialized and memory_allocated read what torch has counted,
device_count and current_device ask for a number.

A GPU that the user names is taken at its word until the script has initialised CUDA. If torch then has no such GPU, the
device is found as without a name.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast_hooks.gpu_work import gpu_of
from holdfast_hooks.hook_errors import ConfigurationError, OnceLog
from holdfast_hooks.state.counterparts import named_parameters

_NODES = ("nvidiactl", "kfd", "dxg")
"""Devices of the drivers of NVIDIA's and AMD's GPUs, and of those of a Windows host."""
SEARCHED_FOR = "the device of this rank is searched for"
"""Beginning of the line about a device that the user gave and that cannot be."""
_WITHOUT_TORCH = re.compile(r"cpu|cuda(:\d+)?")


class OwnDevice:
    """The device of one rank, as far as it is known.

    Args:
        wanted: torch's name of the device, as the user gave it; None: find it. "cuda" names no GPU: it is found, too.
        state: the objects whose parameters show the device.
        may_have_gpus: whether this machine may have a GPU. If not, the device is the CPU from the beginning.
        once: where to say that ``wanted`` cannot be.
    """

    def __init__(
        self, wanted: str | None, state: Mapping[str, Any], *, may_have_gpus: bool, once: OnceLog | None = None
    ) -> None:
        self.wants_current = False
        """Whether the training thread should call :meth:`note_current`. The reporter sets it."""
        self._state = state
        self._once = once or OnceLog()
        if wanted is not None and wanted.startswith("cuda") and not may_have_gpus and not _has_cuda():
            nodes = ", ".join(f"/dev/{name}" for name in _NODES)
            self._warn(wanted, f"this machine has no GPU (no {nodes}): leave device out, or run elsewhere")
            wanted = None
        self._kind, _, index = (wanted or "").partition(":")
        self._gpu = int(index) if self._kind == "cuda" and index else None
        self._current: int | None = None
        self._settled = bool(wanted) and (self._kind != "cuda" or self._gpu is not None)
        self._name = wanted or ""
        self._is_unchecked = self._gpu is not None
        """Whether the user named a GPU by its index, and torch has not shown yet that there is one."""
        if wanted is None and not may_have_gpus:
            self._name = "cpu"

    @property
    def name(self) -> str:
        """torch's name of the device: ``cpu``, ``cuda:3``; empty, or ``cuda``, while it is not known."""
        return self._name

    @property
    def gpu(self) -> int | None:
        """Index of the GPU among those that this process can see; None: the CPU, or not known yet."""
        self._check_index()
        return self._gpu

    def look_at_state(self) -> None:
        """Take the device from the parameters of the state, if some are on a GPU (training thread)."""
        self.note_current()
        if self._settled:
            return
        parameters = (parameter for _, _, parameter in named_parameters(self._state))
        found = gpu_of(parameters)
        if found is not None:
            self._find(found)
            self._settled = True

    def note_current(self) -> None:
        """Note the current GPU of the training thread, if torch has initialised CUDA (training thread)."""
        self.wants_current = False
        self._check_index()
        if _has_cuda():
            self._current = sys.modules["torch"].cuda.current_device()

    def look(self, *, stepped: bool) -> None:
        """Look at what torch's allocator has given out (any other thread).

        Args:
            stepped: whether a step is over, so that the rank has used its device. What was found then is final.
        """
        self._check_index()
        if self._settled:
            return
        found = self._used_gpu()
        if found is not None:
            self._find(found)
            self._settled = stepped
        elif stepped and not self._kind and not self.wants_current:
            self._name = "cpu"  # and continue to look: training may move to a GPU later

    def _check_index(self) -> None:
        """Forget the index that the user gave if torch has no such GPU. Any thread may call it."""
        gpu = self._gpu
        if not self._is_unchecked or gpu is None or not _has_cuda():
            return
        count = sys.modules["torch"].cuda.device_count()
        if gpu >= count:
            self._warn(f"cuda:{gpu}", f"torch has {count} GPUs here, the first one is cuda:0: give one of them")
            self._kind, self._name, self._gpu, self._settled = "", "", None, False
        self._is_unchecked = False

    def _warn(self, wanted: str, why: str) -> None:
        self._once.warn(SEARCHED_FOR, f'attach(device="{wanted}"): {why}')

    def _find(self, gpu: int) -> None:
        self._gpu, self._name = gpu, f"cuda:{gpu}"

    def _used_gpu(self) -> int | None:
        if not _has_cuda():
            return None
        cuda = sys.modules["torch"].cuda
        try:
            used = [cuda.memory_allocated(gpu) for gpu in range(cuda.device_count())]
        except RuntimeError:  # an allocator that is not torch's own keeps no statistics
            used = []
        holders = [gpu for gpu, nbytes in enumerate(used) if nbytes]
        if len(holders) == 1:
            return holders[0]
        if used and not holders:
            return None  # CUDA is initialised, and nothing computes on a GPU yet
        self.wants_current = self._current is None
        if not holders or self._current in holders:
            return self._current
        return None if self._current is None else max(holders, key=used.__getitem__)


def checked_name(device: object) -> str | None:
    """Return torch's name of a device that a user gave. Raises ConfigurationError if torch knows no such device."""
    if device is None:
        return None
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}"  # as torch takes a number
    name, torch = str(device), sys.modules.get("torch")
    try:
        is_known = bool(_WITHOUT_TORCH.fullmatch(name)) if torch is None else bool(torch.device(name))
    except RuntimeError:
        is_known = False
    if not is_known:
        raise ConfigurationError(
            f'attach(device={device!r}): torch knows no such device: give a name such as "cuda:0", or leave it out'
        )
    return name


def may_have_gpus(devices: Path = Path("/dev")) -> bool:
    """Whether this machine, or this container, has the device of a GPU's driver."""
    return any((devices / name).exists() for name in _NODES)


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()
