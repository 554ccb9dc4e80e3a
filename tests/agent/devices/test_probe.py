"""The probe with the real pynvml, on a stand-in for the driver's library."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast_agent.devices.gpu import sample_of
from tests.support.fake_nvml import FakeNvml

COMMAND = [sys.executable, "-m", "holdfast_agent.devices.probe", str(os.getpid())]


@pytest.fixture
def probe(nvml: FakeNvml) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.stdout.close()


def document(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def until(process: "subprocess.Popen[str]", name: str, value: object) -> Any:
    """Return the first sample in which GPU 0 has a value."""
    for _ in range(20):
        found = document(process)
        if found["gpus"][0].get(name) == value:
            return found
    raise AssertionError(f"no sample with {name} {value}")


def test_all_that_a_gpu_tells_is_in_a_sample(nvml: FakeNvml, probe: "subprocess.Popen[str]") -> None:
    nvml.set(
        0, utilization=97, temperature=61, milliwatts=612_500, sm_clock=1980, memory_clock=2619, throttles=0x49,
        ecc=2, remap_pending=1, nvlink=3, pids="12,13", memory_used=5,
    )  # fmt: skip
    nvml.set(1, mig=1)
    until(probe, "temperature_celsius", 61)
    first, second = sample_of(document(probe)).gpus
    assert dict(first.readings) == {
        "utilization_ratio": 0.97,
        "memory_used_bytes": 5.0,
        "memory_total_bytes": 80 * 2.0**30,
        "temperature_celsius": 61.0,
        "power_watts": 612.5,
        "sm_clock_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9,
        "ecc_uncorrected_errors": 2.0,
        "row_remap_pending": 1.0,
        "row_remap_failed": 0.0,
        "nvlink_errors": 6.0,
    }
    assert (first.index, first.uuid, first.bus_id, first.pids) == (0, "GPU-0", "0000:41:00.0", (12, 13))
    assert first.throttles == ("hw_slowdown", "hw_thermal_slowdown")
    assert (second.parts, second.throttles) == (("MIG-0",), ())
    assert "temperature_celsius" not in second.readings  # the GPU does not support it


def test_a_gpu_that_falls_off_the_bus_is_reported_and_the_others_continue(
    nvml: FakeNvml, probe: "subprocess.Popen[str]"
) -> None:
    document(probe)
    nvml.set(0, lost=1)
    found = until(probe, "gone", "lost")
    assert found["gpus"][0]["uuid"] == "GPU-0"
    assert "memory_used_bytes" in found["gpus"][1]
    nvml.set(0, lost=None, reset_required=1)
    until(probe, "gone", "reset_required")


def test_xids_are_reported_once_even_of_a_gpu_that_is_lost(nvml: FakeNvml, probe: "subprocess.Popen[str]") -> None:
    document(probe)
    nvml.set(1, lost=1)
    nvml.set("all", xid0="1:79", xid1="0:13")
    reported: list[tuple[str, int]] = []
    while len(reported) < 2:
        reported += sample_of(document(probe)).xids
    assert reported == [("GPU-1", 79), ("GPU-0", 13)]
    assert sample_of(document(probe)).xids == ()


def test_without_a_driver_it_says_so_and_ends(nvml: FakeNvml) -> None:
    nvml.set("all", loaded=0)
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (1, {"failure": "Driver Not Loaded"})


def test_it_ends_when_the_agent_is_gone(nvml: FakeNvml) -> None:
    somebody_else = 1 if os.getpid() != 1 else 2
    done = subprocess.run([*COMMAND[:-1], str(somebody_else)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        document(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_it_takes_a_sample_when_it_is_asked(nvml: FakeNvml, probe: "subprocess.Popen[str]") -> None:
    began = time.monotonic()
    document(probe)
    for _ in range(50):
        assert probe.stdin is not None
        probe.stdin.write("\n")
        probe.stdin.flush()
        document(probe)
    assert time.monotonic() - began < 50  # that many regular ones take longer
