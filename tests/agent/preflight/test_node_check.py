"""The check with the real program, on a machine whose other processes and interfaces a test makes up."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from holdfast_agent.preflight.measuring import CheckedPlaces, Findings
from holdfast_agent.preflight.node_check import MOST_OFFSET_S, add_clock, check_node, clock_fault
from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError
from holdfast_base.run_processes import identify
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.devices.conftest import nvml
from tests.support.coroutines import PATIENCE_S, until
from tests.support.fake_nvml import FakeNvml

__all__ = ["nvml"]

SPEEDS = (
    store.CHECK_KIND_DISK,
    store.CHECK_KIND_SHM,
    store.CHECK_KIND_LOOPBACK,
    store.CHECK_KIND_CPU_GEMM,
    store.CHECK_KIND_CPU_MEMORY,
)


@pytest.fixture
def places(tmp_path: Path) -> CheckedPlaces:
    """A machine on which nothing else runs. Its disk is real."""
    for name in ("run", "root/proc"):
        (tmp_path / name).mkdir(parents=True)
    folder = str(tmp_path / "run")
    return CheckedPlaces(
        folders=(folder,), shm_directory=folder, address="127.0.0.1", system_root=str(tmp_path / "root")
    )


def program(code: str) -> list[str]:
    """Return the command of a program in place of the one that measures."""
    return [sys.executable, "-c", f"import sys, time\nsys.stdin.read()\n{code}"]


async def test_all_speeds_of_a_healthy_machine_are_measured(places: CheckedPlaces) -> None:
    check = await check_node(places, name="id-1", limit_s=PATIENCE_S)
    assert (check.id, check.unmeasured, list(check.failures)) == ("id-1", "", [])
    assert tuple(figure.kind for figure in check.figures) == SPEEDS
    assert all(figure.value > 0 for figure in check.figures)
    assert check.took_s > 0 and abs(check.ended_unix_s - time.time()) < 60
    assert list(Path(places.folders[0]).iterdir()) == []


async def test_next_to_another_job_only_what_disturbs_nobody_is_looked_at(
    places: CheckedPlaces, nvml: FakeNvml
) -> None:
    nvml.set(0, lost=1)
    nvml.set(1, pids="4711")
    check = await check_node(places)
    assert check.unmeasured == "process 4711 computes on GPU 1"
    assert not check.figures
    [failure] = check.failures
    assert failure.kind == store.CHECK_KIND_GPU_STATE
    assert failure.reason == "GPU 0: the driver no longer reaches the GPU"


async def test_a_device_that_hangs_is_a_fault_and_the_program_is_killed(places: CheckedPlaces, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    note_pid = f"import os\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    begin = f"print('{{\"begins\": {store.CHECK_KIND_DISK}}}', flush=True)"
    check = await check_node(places, limit_s=1.0, command=program(f"{note_pid}\n{begin}\ntime.sleep(600)"))
    [failure] = check.failures
    assert failure.kind == store.CHECK_KIND_DISK
    assert failure.reason == "disk: no answer within 1 s"
    assert identify(int(pid_file.read_text())) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            f"print('{{\"begins\": {store.CHECK_KIND_CPU_GEMM}}}', flush=True)\ntime.sleep(600)",
            "CPU GEMM: the check did not end within 1 s",
        ),
        ("time.sleep(600)", "start: the check did not end within 1 s"),
        (
            f"print('{{\"begins\": {store.CHECK_KIND_LOOPBACK}}}', flush=True)\nsys.exit(3)",
            "loopback: the check ended with exit code 3",
        ),
        ("print('nonsense')", "the check makes no sense"),
    ],
)
async def test_a_program_that_is_slow_or_ends_early_is_no_fault(places: CheckedPlaces, code: str, reason: str) -> None:
    check = await check_node(places, limit_s=1.0, command=program(code))
    assert not check.failures
    assert check.unmeasured.startswith(reason)


async def test_a_program_that_cannot_be_started_is_no_fault(places: CheckedPlaces) -> None:
    check = await check_node(places, command=["/nowhere/python"])
    assert not check.failures
    assert check.unmeasured.startswith("the check cannot be started: ")


async def test_a_check_that_is_cancelled_leaves_no_program_behind(places: CheckedPlaces, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    write = f"import os\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    task = asyncio.ensure_future(check_node(places, command=program(write)))
    pid = int(await until(lambda: pid_file.exists() and pid_file.read_text(), "the program runs"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert identify(pid) is None


def test_one_check_does_not_prevent_the_next() -> None:
    lines: list[dict[str, object]] = []
    findings = Findings(lines.append)

    def fail(error: Exception) -> float:
        raise error

    assert not findings.check(store.CHECK_KIND_DISK, lambda: fail(NodeFaultError("it is full")))
    assert findings.check(store.CHECK_KIND_SHM, lambda: fail(UnmeasuredError("no room")))
    assert findings.check(store.CHECK_KIND_LOOPBACK, lambda: fail(RuntimeError("odd")))
    assert findings.check(store.CHECK_KIND_NETWORK, lambda: None)
    assert [line for line in lines if "begins" not in line] == [
        {"kind": store.CHECK_KIND_DISK, "failure": "it is full"},
        {"unmeasured": "shared memory: no room"},
        {"unmeasured": "loopback: RuntimeError('odd')"},
    ]


async def test_the_offset_of_the_clock_is_a_figure() -> None:
    check = store.NodeCheck()

    async def two_seconds_ahead() -> int:
        return time.time_ns() + 2 * 10**9

    async def unreachable() -> int:
        return 0

    await add_clock(check, unreachable)
    assert not check.figures
    await add_clock(check, two_seconds_ahead)
    [figure] = check.figures
    assert figure.kind == store.CHECK_KIND_CLOCK
    assert figure.value == pytest.approx(-2, abs=1)
    assert not check.failures


def test_only_a_clock_that_is_surely_far_off_is_a_fault() -> None:
    assert clock_fault(MOST_OFFSET_S, 0.0) == ""
    assert clock_fault(-MOST_OFFSET_S - 5, 20.0) == ""
    assert clock_fault(400.0, 1.0) == "the clock is 400 s ahead of that of Redis"
    assert clock_fault(-400.0, 1.0) == "the clock is 400 s behind that of Redis"
