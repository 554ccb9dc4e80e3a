"""Waits until the ranks of an old generation have given up the memory of their GPUs.

The driver frees the memory of a process some time after its end. A new rank that starts before runs out of memory.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence

from holdfast_agent.devices.gpu import Gpu
from holdfast_agent.devices.node_devices import NodeDevices, gpus_of
from holdfast_agent.processes.rank import Rank
from holdfast_base import processes

log = logging.getLogger(__name__)

PATIENCE_S = 10.0

_IDLE_BYTES = 1 << 30
"""Memory in use at which a GPU counts as free, whichever process has it: the driver's own takes less."""

_SHARE = 0.5
"""Least share of what the old ranks had reserved that must be free again. Torch's figure leaves out contexts."""

_LOOK_S = 0.02


async def await_release(devices: NodeDevices, ranks: Collection[Rank], *, patience_s: float = PATIENCE_S) -> bool:
    """Wait for up to ``patience_s``; return whether the GPUs of ``ranks``, which have ended, are free of them.

    If the driver does not answer, nobody knows, and this does not wait.
    """
    busy: Sequence[Gpu] = gpus_of(devices, ranks)
    deadline_s = time.monotonic() + patience_s
    is_known = False
    while busy and devices.answers and time.monotonic() < deadline_s:
        if await _sampled(devices, deadline_s):
            is_known = True
            busy = [gpu for gpu in gpus_of(devices, ranks) if not gpu.gone and not _is_free(devices, gpu, ranks)]
    devices.peak_used_bytes.clear()
    if not busy or not devices.answers:
        return True
    held = ", ".join(f"GPU {gpu.index}: {gpu.readings.get('memory_used_bytes', 0) / 1e9:.1f} GB" for gpu in busy)
    what = f"GPUs still hold memory of the ranks before ({held} in use)" if is_known else "the driver does not answer"
    log.warning("%s after %.0f s: the new ranks start anyway, and may run out of memory", what, patience_s)
    return False


async def _sampled(devices: NodeDevices, deadline_s: float) -> bool:
    """Wait for a sample that began after this call; return whether there is one.

    The one that is under way may be out of date. So this asks twice.
    """
    for _ in range(2):
        known = devices.samples_total
        devices.ask()
        while devices.samples_total == known:
            if not devices.answers or time.monotonic() >= deadline_s:
                return False
            await asyncio.sleep(_LOOK_S)
    return True


def _is_free(devices: NodeDevices, gpu: Gpu, ranks: Collection[Rank]) -> bool:
    """Whether no process that has ended holds the GPU. Processes that live are not ours: all of ours were killed."""
    if devices.pids_are_ours and gpu.pids is not None:
        return all(processes.process_state(pid) not in ("", "Z", "X") for pid in gpu.pids)
    used = gpu.readings.get("memory_used_bytes")
    if used is None:
        return True
    mine = sum(rank.memory.reserved_bytes for rank in ranks if devices.gpu_of(rank) == gpu)
    return used <= max(_IDLE_BYTES, devices.peak_used_bytes.get(gpu.uuid, 0.0) - _SHARE * mine)
