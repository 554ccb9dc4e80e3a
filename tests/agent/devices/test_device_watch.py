"""The agent's job, with a real probe on a stand-in for the driver's library, and a file for the kernel's log."""

import asyncio
from typing import Any

import pytest

from holdfast_agent.devices import device_watch
from holdfast_agent.devices.device_watch import DeviceWatch, has_driver
from holdfast_agent.devices.node_devices import NodeDevices, SeenXid
from holdfast_agent.devices.probe_client import ProbeClient
from holdfast_agent.processes.containment import Errors
from tests.support.coroutines import end, until
from tests.support.fake_nvml import FakeNvml


class Watched:
    def __init__(self, machine: Any) -> None:
        self.devices = NodeDevices()
        self.errors = Errors()
        self.seen: list[SeenXid] = []
        self.watch = DeviceWatch(self.devices, self.errors, machine.root, self.seen.append)

    async def __aenter__(self) -> "Watched":
        self._job = asyncio.create_task(self.watch.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._job)


def test_a_machine_without_the_driver_is_recognised(machine: Any) -> None:
    assert has_driver(machine.root)
    assert not has_driver(machine.root / "dev")


async def test_readings_and_errors_arrive(machine: Any, nvml: FakeNvml) -> None:
    nvml.set(0, temperature=50)
    async with Watched(machine) as watched:
        await until(lambda: watched.devices.gpus, "the GPUs are known")
        assert watched.devices.answers
        assert watched.devices.gpus["GPU-0"].readings["temperature_celsius"] == 50
        machine.log("NVRM: Xid (PCI:0000:42:00): 79, pid=5, name=python, GPU has fallen off the bus.")
        nvml.set("all", xid0="1:79")  # NVML reports it, too
        nvml.set(1, lost=1)
        await until(lambda: watched.devices.gpus["GPU-1"].gone, "the GPU is lost")
        await until(lambda: watched.seen, "the Xid is seen")
    assert dict(watched.devices.xid_counts) == {("GPU-1", 79): 1}
    assert [seen.xid.pid for seen in watched.seen] == [5]


async def test_without_the_kernels_log_nvml_reports_the_errors(machine: Any, nvml: FakeNvml) -> None:
    (machine.root / "dev/kmsg").unlink()
    async with Watched(machine) as watched:
        await until(lambda: watched.devices.gpus, "the GPUs are known")
        nvml.set("all", xid0="1:79")
        await until(lambda: watched.seen, "the Xid is seen")
    assert [(seen.uuid, seen.xid.number) for seen in watched.seen] == [("GPU-1", 79)]


async def test_without_nvml_the_drivers_files_show_which_gpu_an_error_is_about(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "has_nvml", lambda: False)
    folder = machine.root / "proc/driver/nvidia/gpus/0000:42:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("GPU UUID: GPU-1\n")
    async with Watched(machine) as watched:
        await until(lambda: watched.devices.gpus, "the GPUs are known")
        machine.log("NVRM: Xid (PCI:0000:42:00): 48, pid=5, name=python, DBE")
        await until(lambda: watched.seen, "the Xid is seen")
    assert watched.devices.gpus["GPU-1"].index == 0
    assert not watched.devices.answers


async def test_a_driver_that_hangs_holds_up_nothing_and_leaves_no_old_readings(machine: Any, nvml: FakeNvml) -> None:
    samples: list[Any] = []
    silences: list[int] = []
    client = ProbeClient(samples.append, lambda: silences.append(1), lambda _: None, silence_s=2.0, pause_s=0.0)
    job = asyncio.create_task(client.run())
    try:
        await until(lambda: samples, "a sample comes")
        nvml.set(0, hangs=1)
        await until(lambda: silences, "samples stay away")
        nvml.set(0, hangs=None)
        before = len(samples)
        await until(lambda: len(samples) > before, "the next probe finds a driver that answers")
    finally:
        await end(job)


async def test_a_probe_that_cannot_start_is_reported_once(
    machine: Any, nvml: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.set("all", loaded=0)
    ends: list[int] = []
    client = ProbeClient(lambda _: None, lambda: ends.append(1), lambda _: None, pause_s=0.0)
    job = asyncio.create_task(client.run())
    await until(lambda: len(ends) >= 2, "two probes have ended")
    await end(job)
    lines = [record.message for record in caplog.records if "NVML" in record.message]
    assert lines == ["the GPUs cannot be read through NVML: Driver Not Loaded; training is not affected"]
