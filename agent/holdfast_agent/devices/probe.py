"""A process of its own that reads the node's GPUs through NVML: one line of JSON on stdout for each sample.

A call of NVML can hang for seconds, or for good, when a GPU is sick, and a process that hangs in the driver cannot be
killed. So no other process of ours calls NVML: the agent reads these lines, and forgets this process if they stay away.

This program imports nothing else of the agent, so that it is small. It ends when nobody reads its lines any more.
"""

import ctypes
import json
import os
import select
import sys
import time
from typing import Any

import pynvml

INTERVAL_S = 1.0
SLICE_S = 0.05
"""Longest wait for an Xid before the agent may ask for a sample."""

SEVERE = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
}
THROTTLES = {pynvml.nvmlClocksThrottleReasonSwPowerCap: "sw_power_cap", **SEVERE}
"""Bits of NVML's mask -> names of the reasons why clocks are lower than they could be. Idle GPUs are not among them."""

_NVLINK_ERRORS = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
_GONE = {pynvml.NVML_ERROR_GPU_IS_LOST: "lost", pynvml.NVML_ERROR_RESET_REQUIRED: "reset_required"}
"""Errors of NVML after which a GPU computes nothing, and what they say of it."""


class GpuGoneError(Exception):
    """The driver no longer reaches the GPU, or has to reset it. The argument is a value of _GONE."""


class GpuReader:
    """Reads one GPU. What the GPU or the driver does not support is left out."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._handle: Any = None
        self._known: dict[str, Any] = {}

    def sample(self) -> dict[str, Any]:
        """Return all that is known of the GPU now."""
        try:
            self._open()
            return {"index": self.index, **self._known, **self._readings()}
        except GpuGoneError as error:
            return {"index": self.index, **self._known, "gone": str(error)}

    def register(self, events: Any) -> None:  # noqa: ANN401 - NVML's handles have no types
        """Have NVML report the Xids of the GPU in ``events``. Raises GpuGoneError."""
        self._open()
        _ask("nvmlDeviceRegisterEvents", self._handle, pynvml.nvmlEventTypeXidCriticalError, events)

    def is_about(self, handle: Any) -> bool:  # noqa: ANN401
        """Whether a handle of an event means this GPU. A GPU that is lost can no longer be asked for its UUID."""
        return self._handle is not None and _address(handle) == _address(self._handle)

    @property
    def uuid(self) -> str:
        """Its UUID; empty while it is not known."""
        return str(self._known.get("uuid", ""))

    def _open(self) -> None:
        if self._handle is None:
            self._handle = _ask("nvmlDeviceGetHandleByIndex", self.index)
        if self._handle is None or self._known:
            return
        handle = self._handle
        uuid, pci = _ask("nvmlDeviceGetUUID", handle), _ask("nvmlDeviceGetPciInfo", handle)
        if uuid and pci:
            bus_id = pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId
            self._known = {"uuid": uuid, "bus_id": bus_id, "parts": self._parts()}

    def _parts(self) -> list[str]:
        """Return the UUIDs of the parts (MIG devices) into which the GPU is divided."""
        handle = self._handle
        parts = (_ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, n) for n in range(self._most_parts()))
        uuids = (_ask("nvmlDeviceGetUUID", part) for part in parts if part is not None)
        return [uuid for uuid in uuids if uuid]

    def _most_parts(self) -> int:
        mode = _ask("nvmlDeviceGetMigMode", self._handle)
        return _ask("nvmlDeviceGetMaxMigDeviceCount", self._handle) or 0 if mode and mode[0] else 0

    def _readings(self) -> dict[str, Any]:
        handle = self._handle
        if handle is None:
            return {}
        memory = _ask("nvmlDeviceGetMemoryInfo", handle)
        utilization = _ask("nvmlDeviceGetUtilizationRates", handle)
        milliwatts = _ask("nvmlDeviceGetPowerUsage", handle)
        remapped = _ask("nvmlDeviceGetRemappedRows", handle)
        readings = {
            "utilization_ratio": None if utilization is None else utilization.gpu / 100,
            "memory_used_bytes": None if memory is None else memory.used,
            "memory_total_bytes": None if memory is None else memory.total,
            "temperature_celsius": _ask("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
            "power_watts": None if milliwatts is None else milliwatts / 1000,
            "sm_clock_hertz": _hertz(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_hertz": _hertz(handle, pynvml.NVML_CLOCK_MEM),
            "throttles": _throttles(handle),
            "ecc_uncorrected_errors": _ask(
                "nvmlDeviceGetTotalEccErrors",
                handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            ),
            "row_remap_pending": None if remapped is None else bool(remapped[2]),
            "row_remap_failed": None if remapped is None else bool(remapped[3]),
            "nvlink_errors": _nvlink_errors(handle),
            "pids": _pids(handle),
        }
        return {name: value for name, value in readings.items() if value is not None}


def _ask(call: str, *arguments: Any) -> Any:  # noqa: ANN401
    """Return what a call of NVML says, or None if package, driver or GPU do not know it. Raises GpuGoneError."""
    try:
        return getattr(pynvml, call)(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise GpuGoneError(_GONE[error.value]) from None
        return None
    except AttributeError:
        return None


def _hertz(handle: Any, clock: int) -> int | None:  # noqa: ANN401
    megahertz = _ask("nvmlDeviceGetClockInfo", handle, clock)
    return None if megahertz is None else megahertz * 10**6


def _throttles(handle: Any) -> list[str] | None:  # noqa: ANN401
    mask = _ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # a driver before version 535
        mask = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if mask is None else [name for bit, name in THROTTLES.items() if mask & bit]


def _nvlink_errors(handle: Any) -> int | None:  # noqa: ANN401
    values = _ask("nvmlDeviceGetFieldValues", handle, list(_NVLINK_ERRORS))
    counts = [value.value.ullVal for value in values or () if value.nvmlReturn == pynvml.NVML_SUCCESS]
    return sum(counts) if counts else None


def _pids(handle: Any) -> list[int] | None:  # noqa: ANN401
    found = _ask("nvmlDeviceGetComputeRunningProcesses", handle)
    return None if found is None else [process.pid for process in found]


def _address(handle: Any) -> int | None:  # noqa: ANN401
    return ctypes.cast(handle, ctypes.c_void_p).value


class AgentPipe:
    """The agent at the other end of stdin. Each line that it writes asks for a sample now."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._has_left = False

    @property
    def is_there(self) -> bool:
        """Whether it lives."""
        return not self._has_left and os.getppid() == self._pid

    def asks(self, wait_s: float) -> bool:
        """Wait for up to ``wait_s``; return early, and whether to do something, once it asks or is gone."""
        if not select.select([0], [], [], wait_s)[0]:
            return False
        self._has_left = not os.read(0, 4096)
        return True


def await_xids(events: Any, readers: list[GpuReader], agent: AgentPipe, until_s: float) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return the Xids that NVML reports until a monotonic time, or until the agent asks for a sample."""
    found = []
    has_events = True
    while (left_s := until_s - time.monotonic()) > 0 and not agent.asks(0.0 if has_events else left_s):
        if not has_events:
            continue
        try:
            event = pynvml.nvmlEventSetWait_v2(events, int(min(left_s, SLICE_S) * 1000) + 1)
        except pynvml.NVMLError as error:
            has_events = error.value == pynvml.NVML_ERROR_TIMEOUT
            continue
        uuids = [reader.uuid for reader in readers if reader.is_about(event.device)]
        found += [{"uuid": uuid, "xid": event.eventData} for uuid in uuids]
    return found


def main(agent_pid: int) -> int:
    """Write samples while the process ``agent_pid`` is this one's parent; return an exit code."""
    try:
        pynvml.nvmlInit()
        readers = [GpuReader(index) for index in range(pynvml.nvmlDeviceGetCount())]
        events = _ask("nvmlEventSetCreate")
    except (pynvml.NVMLError, GpuGoneError) as error:
        print(json.dumps({"failure": str(error)}), flush=True)
        return 1
    for reader in readers:
        try:
            reader.register(events)
        except GpuGoneError:
            continue  # its sample says so
    xids: list[dict[str, Any]] = []
    agent = AgentPipe(agent_pid)
    while agent.is_there:
        next_s = time.monotonic() + INTERVAL_S
        try:
            print(json.dumps({"gpus": [reader.sample() for reader in readers], "xids": xids}), flush=True)
        except BrokenPipeError:
            break
        xids = await_xids(events, readers, agent, next_s)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
