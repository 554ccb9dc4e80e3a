"""Records what torch allocates on a GPU during a profile, in the form of torch's viewer of memory."""

import pickle
from pathlib import Path
from typing import Any

_MOST_ENTRIES = 100_000
"""Allocations and releases that are kept, the newest. Each has a stack, and needs some KB in the file."""


class GpuMemoryRecord:
    """The history of torch's allocator. The training thread starts and ends it. On a CPU it does nothing.

    A history that the script itself records is only read.
    """

    def __init__(self, torch: Any) -> None:  # noqa: ANN401 - the module torch
        self._torch = torch
        self._is_ours = False
        self.snapshot: dict[str, Any] | None = None
        """What :meth:`end` has read; None: nothing."""

    def start(self) -> None:
        """Record from now on, if this process uses a GPU."""
        if self._torch.cuda.is_initialized() and not self._torch._C._cuda_isHistoryEnabled():  # noqa: SLF001
            self._torch.cuda.memory._record_memory_history(max_entries=_MOST_ENTRIES, stacks="python")  # noqa: SLF001
            self._is_ours = True

    def end(self, *, keep: bool) -> None:
        """End the record. ``keep``: read it first."""
        memory = self._torch.cuda.memory
        try:
            if keep and self._torch.cuda.is_initialized():
                self.snapshot = memory._snapshot()  # noqa: SLF001
        finally:
            if self._is_ours:
                self._is_ours = False
                memory._record_memory_history(enabled=None)  # noqa: SLF001

    def write(self, path: Path) -> None:
        """Write what was read. Raises OSError."""
        with path.open("wb") as file:
            pickle.dump(self.snapshot, file)
