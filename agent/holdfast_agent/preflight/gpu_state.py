"""Asks the driver for the state of the node's GPUs, in this process: it may hang."""

from collections.abc import Iterator
from pathlib import Path

from holdfast_agent.devices.gpu import GONE, Gpu, sample_of
from holdfast_agent.devices.probe_client import has_nvml
from holdfast_agent.preflight.outcomes import UnmeasuredError


def open_driver(system_root: Path) -> bool:
    """Return whether the node has GPUs that :func:`read_gpus` can read. The first call of the driver takes seconds.

    Raises UnmeasuredError if NVIDIA's driver is there, and NVML cannot be used.
    """
    if not has_nvml():
        if (system_root / "dev/nvidiactl").exists():
            raise UnmeasuredError("the package nvidia-ml-py is not installed")
        return False
    import pynvml  # a node without GPUs may lack it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if (system_root / "dev/nvidiactl").exists():
            raise UnmeasuredError(f"NVML: {error}") from None
        return False
    return True


def read_gpus() -> list[Gpu]:
    """Return all GPUs of the node. Only after :func:`open_driver`; raises UnmeasuredError."""
    import pynvml

    from holdfast_agent.devices.probe import GpuReader

    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise UnmeasuredError(f"NVML: {error}") from None
    # A GPU that is gone may not even tell its names. Here its number is enough.
    samples = [{"uuid": "unknown", "bus_id": "0:0:0", **GpuReader(index).sample()} for index in range(count)]
    return list(sample_of({"gpus": samples}).gpus)


def gpu_faults(gpu: Gpu) -> Iterator[str]:
    """Yield what is broken about a GPU. Heat, low clocks and rows that wait to be remapped are no faults.

    ECC errors are those since the driver was loaded, or the GPU was reset.
    """
    name = f"GPU {gpu.index}"
    if gpu.gone:
        yield f"{name}: {GONE[gpu.gone]}"
    if gpu.readings.get("row_remap_failed"):
        yield f"{name}: a bad row of its memory could not be remapped: replace the GPU"
    errors = gpu.readings.get("ecc_uncorrected_errors", 0.0)
    if errors > 0:
        yield f"{name}: its memory has had {errors:.0f} errors that ECC cannot correct: reset the GPU"
