"""New ranks wait until the GPUs are free of the old ones, and not for long."""

import asyncio
import os
import subprocess
from collections.abc import Iterator

import pytest

from holdfast_agent.devices.gpu import Gpu, GpuSample
from holdfast_agent.devices.memory_release import await_release
from holdfast_agent.devices.node_devices import NodeDevices
from holdfast_agent.processes.rank import Rank
from holdfast_proto.v1 import session_pb2 as session

GB = 10**9


def gpu(used: float = 0.0, pids: tuple[int, ...] | None = (), gone: str = "") -> Gpu:
    return Gpu(0, "GPU-0", "0000:41:00.0", readings={"memory_used_bytes": used}, pids=pids, gone=gone)


class Driver:
    """A driver that shows one state after the other, each time that it is asked."""

    def __init__(self, *states: Gpu, pids_are_ours: bool = True) -> None:
        self.devices = NodeDevices(pids_are_ours=pids_are_ours)
        self.devices.ask = self._answer
        self.asked = 0
        self._states = list(states)
        self.devices.take(GpuSample((self._states[0],)))

    def _answer(self) -> None:
        self.asked += 1
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        asyncio.get_running_loop().call_soon(self.devices.take, GpuSample((state,)))


async def released(driver: Driver, old: list[Rank] | None = None, patience_s: float = 60.0) -> bool:
    return await await_release(driver.devices, ranks() if old is None else old, patience_s=patience_s)


def ranks() -> list[Rank]:
    memory = session.MemoryStatus(reserved_bytes=40 * GB)
    return [Rank(0, 1, 0, 999_999_999, 1, device_uuid="GPU-0", memory=memory)]


@pytest.fixture
def dead() -> Iterator[int]:
    """The pid of a process that has ended, and of which the driver still knows."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


async def test_it_waits_until_no_process_that_has_ended_is_on_the_gpu(dead: int) -> None:
    held = gpu(40 * GB, pids=(dead, os.getpid()))  # that of another program stays
    driver = Driver(held, held, held, held, gpu(2 * GB, pids=(os.getpid(),)))
    assert await released(driver)
    assert driver.asked == 6


async def test_in_a_container_the_memory_in_use_has_to_fall() -> None:
    driver = Driver(gpu(45 * GB, pids=None), gpu(44 * GB), gpu(44 * GB), gpu(6 * GB), pids_are_ours=False)
    assert await released(driver)
    assert driver.asked >= 4
    assert driver.devices.peak_used_bytes == {}


async def test_memory_that_the_old_ranks_had_given_up_before_is_not_waited_for() -> None:
    driver = Driver(gpu(45 * GB, pids=None), pids_are_ours=False)
    driver.devices.take(GpuSample((gpu(5 * GB),)))
    driver._states[0] = gpu(5 * GB)
    assert await released(driver)


async def test_after_a_while_the_new_ranks_start_anyway_and_one_line_says_so(
    dead: int, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(gpu(40 * GB, pids=(dead,)))
    assert not await released(driver, patience_s=0.1)
    (line,) = caplog.messages
    assert line == (
        "GPUs still hold memory of the ranks before (GPU 0: 40.0 GB in use) after 0 s:"
        " the new ranks start anyway, and may run out of memory"
    )


async def test_a_driver_that_does_not_answer_is_not_waited_for_longer(
    dead: int, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(gpu(40 * GB, pids=(dead,)))
    driver.devices.ask = lambda: None
    assert not await released(driver, patience_s=0.1)
    assert caplog.records[0].message.startswith("the driver does not answer after")


@pytest.mark.parametrize("case", ["no answer", "no ranks", "on the cpu", "gpu is gone"])
async def test_without_need_nothing_is_waited_for(case: str, dead: int) -> None:
    driver = Driver(gpu(40 * GB, pids=(dead,)))
    old = ranks()
    if case == "no answer":
        driver.devices.forget_readings()
    elif case == "no ranks":
        old = []
    elif case == "on the cpu":
        old[0].device_uuid = ""
    else:
        driver._states[0] = gpu(gone="lost")
    assert await released(driver, old)
    assert driver.asked <= (2 if case == "gpu is gone" else 0)
