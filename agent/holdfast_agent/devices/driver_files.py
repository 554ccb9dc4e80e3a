"""The GPUs that the driver lists under /proc: known without NVML, too."""

from pathlib import Path

from holdfast_agent.devices.gpu import Gpu, Sample, kernel_bus_id

DRIVER = Path("/proc/driver/nvidia")


def listed_gpus(driver: Path = DRIVER) -> Sample:
    """Return the GPUs that the driver lists, without readings; none if there is no driver.

    nvidia-smi numbers GPUs by their PCI addresses, so their order there is the number. Reading a file may wait for the
    driver: call this in a thread of its own.
    """
    folders = sorted((driver / "gpus").iterdir()) if (driver / "gpus").is_dir() else []
    gpus = []
    for index, folder in enumerate(folders):
        lines = (folder / "information").read_text(errors="replace").splitlines()
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        uuid = fields.get("GPU UUID", "")
        if (
            uuid.startswith("GPU-") and "?" not in uuid
        ):  # while the driver has not opened the GPU, it shows question marks
            gpus.append(Gpu(index, uuid, kernel_bus_id(folder.name)))
    return Sample(tuple(gpus))
