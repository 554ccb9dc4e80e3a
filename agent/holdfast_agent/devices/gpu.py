"""A GPU of the node, as the driver shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast_proto.limits import LARGEST_COUNT, NAME_CHARACTERS

_MOST_GPUS = 64
_MOST_PIDS = 1024
_MOST_PARTS = 64

READINGS = (
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "power_watts",
    "sm_clock_hertz",
    "memory_clock_hertz",
    "ecc_uncorrected_errors",
    "row_remap_pending",
    "row_remap_failed",
    "nvlink_errors",
)
"""Numbers of a sample, by the names that the probe gives them."""
_LARGEST = {"utilization_ratio": 1.0}
"""Largest values of readings that have one. A value beyond it is left out."""
GONE = {
    "lost": "the driver no longer reaches the GPU",
    "reset_required": "the driver cannot use the GPU before a reset",
}
"""States in which a GPU computes nothing, and their meaning for people."""
SEVERE_THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Reasons for low clocks that a healthy GPU does not have: heat, or too little power."""
THROTTLES = (*SEVERE_THROTTLES, "sw_power_cap")


@dataclass(frozen=True)
class Gpu:
    """One GPU, and what the newest sample shows of it."""

    index: int
    """Its number on the node, as nvidia-smi shows it."""
    uuid: str
    """As nvidia-smi shows it: ``GPU-...``."""
    bus_id: str
    """PCI address in the form of the kernel: ``0000:41:00.0``."""
    parts: tuple[str, ...] = ()
    """UUIDs of its parts (MIG), if it is divided."""
    gone: str = ""
    """One of GONE; empty: the driver reaches it."""
    readings: Mapping[str, float] = field(default_factory=dict)
    """Of READINGS those that it has."""
    throttles: tuple[str, ...] = ()
    """Why its clocks are low now, of THROTTLES."""
    pids: tuple[int, ...] | None = None
    """Processes that compute on it, as the driver numbers them; None: not known."""


@dataclass(frozen=True)
class GpuSample:
    """All GPUs at one time, and the Xids that NVML has reported since the sample before: UUID and number."""

    gpus: tuple[Gpu, ...]
    xids: tuple[tuple[str, int], ...] = ()


def sample_of(document: object) -> GpuSample:
    """Return the sample that the probe wrote. Raises ValueError if it makes no sense."""
    if not isinstance(document, dict) or not isinstance(document.get("gpus"), list):
        raise ValueError("a sample without GPUs")
    gpus = [_gpu(entry) for entry in document["gpus"][:_MOST_GPUS]]
    xids = [(str(xid["uuid"])[:NAME_CHARACTERS], int(xid["xid"])) for xid in document.get("xids", [])[:_MOST_PIDS]]
    return GpuSample(tuple(gpu for gpu in gpus if gpu is not None), tuple(xids))


def _gpu(entry: Any) -> Gpu | None:  # noqa: ANN401 - JSON
    """Return a GPU; None if the driver does not even tell its UUID."""
    if not entry.get("uuid") or not entry.get("bus_id"):
        return None
    readings = {name: float(entry[name]) for name in READINGS if name in entry}
    pids = entry.get("pids")
    return Gpu(
        index=int(entry["index"]),
        uuid=str(entry["uuid"])[:NAME_CHARACTERS],
        bus_id=kernel_bus_id(str(entry["bus_id"])),
        parts=tuple(str(part)[:NAME_CHARACTERS] for part in entry.get("parts", [])[:_MOST_PARTS]),
        gone=entry.get("gone", "") if entry.get("gone") in GONE else "",
        readings={name: n for name, n in readings.items() if 0.0 <= n <= _LARGEST.get(name, LARGEST_COUNT)},
        throttles=tuple(name for name in THROTTLES if name in entry.get("throttles", ())),
        pids=None if pids is None else tuple(int(pid) for pid in pids[:_MOST_PIDS]),
    )


def kernel_bus_id(text: str) -> str:
    """Return a PCI address as ``domain:bus:device.function`` with four, two, two and one digits.

    NVML writes the domain with eight digits, the driver's messages leave the function out. Raises ValueError.
    """
    domain, bus, device = text.partition(".")[0].split(":")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.0"


def merged(known: Mapping[str, Gpu], sample: GpuSample) -> dict[str, Gpu]:
    """Return all GPUs by UUID. One that is missing in the sample is as it was, without readings.

    A GPU that has fallen off the bus may be missing in what a new probe finds.
    """
    stale = {uuid: replace(gpu, readings={}, throttles=(), pids=None) for uuid, gpu in known.items()}
    newest = {gpu.uuid: gpu for gpu in sample.gpus}
    # The driver tells the parts only while it reaches the GPU.
    kept = {uuid: replace(gpu, parts=gpu.parts or known[uuid].parts) for uuid, gpu in newest.items() if uuid in known}
    return {**stale, **newest, **kept}
