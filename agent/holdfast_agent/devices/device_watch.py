"""The agent's job that reads what the driver and the kernel's log say about GPUs."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast_agent.devices.gpu import Gpu, GpuSample, kernel_bus_id
from holdfast_agent.devices.node_devices import NodeDevices, SeenXid
from holdfast_agent.devices.probe_client import ProbeClient, has_nvml
from holdfast_agent.devices.xids import Xid, XidKind, xid_of
from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.kernel_log import KernelLog
from holdfast_base.threads import in_daemon_thread

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 0.2
"""Pause between two looks into the kernel's log. A verdict about a hang takes a second at least."""

LIST_INTERVAL_S = 30.0
"""Pause between two looks at the driver's list. A GPU appears there once the driver has opened it."""


def has_driver(root: Path) -> bool:
    """Whether the file system at ``root`` has the device of NVIDIA's driver."""
    return (root / "dev/nvidiactl").exists()


class DeviceWatch:
    """Keeps the GPUs of a node up to date. Only for a node with NVIDIA's driver.

    Args:
        root: root of the file system in which the driver's files and the kernel's log are.
        on_xid: is called with each Xid of a GPU of the node.
    """

    def __init__(self, devices: NodeDevices, errors: Errors, root: Path, on_xid: Callable[[SeenXid], None]) -> None:
        self._devices = devices
        self._errors = errors
        self._root = root
        self._on_xid = on_xid
        self._kernel_log = self._open_log()
        devices.refresh = self.look_at_log

    async def run(self) -> None:
        """Watch until cancelled."""
        jobs = [self._watch_list()]
        if self._kernel_log is not None:
            jobs.append(self._watch_log(self._kernel_log))
        if has_nvml():
            probe = ProbeClient(self._take, self._devices.forget_readings, self._refuse)
            self._devices.ask = probe.ask
            jobs.append(probe.run())
        else:
            log.info("without the package nvidia-ml-py the agent knows GPUs from the driver's files only")
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)

    def look_at_log(self) -> None:
        """Take in what the kernel has logged since the last look."""
        if self._kernel_log is None:
            return
        for xid in self._new_xids(self._kernel_log):
            self._note(self._devices.take_xid(xid))

    def _open_log(self) -> KernelLog | None:
        try:
            return KernelLog(self._root / "dev/kmsg")
        except OSError as error:
            log.info("the kernel's log cannot be read, so that only NVML can report Xids: %s", error)
            return None

    async def _watch_log(self, kernel_log: KernelLog) -> None:
        while self._kernel_log is kernel_log:
            self.look_at_log()
            await asyncio.sleep(LOG_INTERVAL_S)

    def _new_xids(self, kernel_log: KernelLog) -> Iterator[Xid]:
        try:
            for message in kernel_log.new_messages():
                xid = xid_of(message)
                if xid is not None:
                    yield xid
        except OSError as error:
            log.warning("the kernel's log can no longer be read: %s", error)
            kernel_log.close()
            self._kernel_log = None

    async def _watch_list(self) -> None:
        while True:
            try:
                listed = await in_daemon_thread(lambda: listed_gpus(self._root / "proc/driver/nvidia"))
            except (OSError, ValueError) as error:
                self._errors.refuse("files", f"the driver's list of GPUs: {error}")
            else:
                self._devices.take_list(listed)
            await asyncio.sleep(LIST_INTERVAL_S)

    def _take(self, sample: GpuSample) -> None:
        self._devices.take(sample)
        if self._kernel_log is None:  # with it, each would be counted twice
            for uuid, number in sample.xids:
                self._note(self._devices.take_xid(Xid(number), uuid))

    def _refuse(self, reason: str) -> None:
        self._errors.refuse("devices", reason)

    def _note(self, seen: SeenXid | None) -> None:
        if seen is None:
            return
        level = logging.WARNING if seen.xid.kind is not XidKind.NOTICE else logging.INFO
        log.log(level, "GPU %s: Xid %d: %s", seen.uuid, seen.xid.number, seen.xid.line or seen.xid.phrase)
        self._on_xid(seen)


DRIVER = Path("/proc/driver/nvidia")


def listed_gpus(driver: Path = DRIVER) -> GpuSample:
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
    return GpuSample(tuple(gpus))
