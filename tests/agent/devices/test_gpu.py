from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.devices import probe
from holdfast_agent.devices.device_watch import listed_gpus
from holdfast_agent.devices.gpu import GONE, SEVERE_THROTTLES, THROTTLES, GpuSample, kernel_bus_id, merged, sample_of

ENTRY = {"index": 0, "uuid": "GPU-a", "bus_id": "00000000:41:00.0", "parts": ["MIG-a"], "temperature_celsius": 60}


def sample(**changes: Any) -> GpuSample:
    return sample_of({"gpus": [{**ENTRY, **changes}], "xids": []})


def test_addresses_have_the_form_of_the_kernel() -> None:
    texts = ("00000000:41:00.0", "0000:41:00", "0000:41:00.0", "0:41:0")
    assert {kernel_bus_id(text) for text in texts} == {"0000:41:00.0"}


def test_a_gpu_that_the_driver_no_longer_reaches_keeps_what_was_known_of_it() -> None:
    known = merged(merged({}, sample(parts=["MIG-b"])), sample(throttles=["hw_slowdown"], pids=[7]))
    assert known["GPU-a"].readings == {"temperature_celsius": 60.0}
    gone = {key: ENTRY[key] for key in ("index", "uuid", "bus_id")}
    lost = merged(known, sample_of({"gpus": [{**gone, "gone": "lost"}]}))["GPU-a"]
    assert (lost.gone, lost.parts, dict(lost.readings), lost.throttles, lost.pids) == ("lost", ("MIG-a",), {}, (), None)
    forgotten = merged({"GPU-a": lost}, GpuSample(()))["GPU-a"]
    assert (forgotten.index, forgotten.bus_id, forgotten.gone) == (0, "0000:41:00.0", "lost")


@pytest.mark.parametrize("document", [[], {}, {"gpus": 3}, {"gpus": [3]}, {"gpus": [{**ENTRY, "bus_id": "x"}]}, None])
def test_nonsense_is_refused(document: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, KeyError)):
        sample_of(document)


def test_numbers_out_of_range_and_unknown_words_are_left_out() -> None:
    (gpu,) = sample(temperature_celsius=float("nan"), power_watts=-1, throttles=["?", "hw_slowdown"], gone="?").gpus
    assert (dict(gpu.readings), gpu.throttles, gpu.gone) == ({}, ("hw_slowdown",), "")


@pytest.mark.parametrize("ratio", [float("nan"), -0.01, 1.01])
def test_a_utilization_that_is_no_share_is_left_out(ratio: float) -> None:
    (gpu,) = sample(utilization_ratio=ratio).gpus
    assert dict(gpu.readings) == {"temperature_celsius": 60.0}


def test_a_reading_of_zero_and_a_whole_share_are_readings() -> None:
    (gpu,) = sample(temperature_celsius=0, utilization_ratio=1.0, pids=[7, 8]).gpus
    assert dict(gpu.readings) == {"temperature_celsius": 0.0, "utilization_ratio": 1.0}
    assert gpu.pids == (7, 8)


def test_long_lists_and_names_are_cut() -> None:
    long = sample(uuid="x" * 300, parts=["y" * 300] * 70, pids=[1] * 2000)
    (gpu,) = long.gpus
    assert gpu.pids is not None
    assert (len(gpu.uuid), len(gpu.parts), len(gpu.parts[0]), len(gpu.pids)) == (255, 64, 255, 1024)
    many = sample_of({"gpus": [ENTRY] * 70, "xids": [{"uuid": "x" * 300, "xid": 79}] * 2000})
    assert (len(many.gpus), len(many.xids), len(many.xids[0][0])) == (64, 1024, 255)


def test_the_probe_and_the_agent_have_the_same_names() -> None:
    assert set(probe.SEVERE.values()) == set(SEVERE_THROTTLES)
    assert set(probe.THROTTLES.values()) == set(THROTTLES)
    assert set(probe._GONE.values()) == set(GONE)


@pytest.mark.parametrize("entry", [{**ENTRY, "uuid": None}, {**ENTRY, "bus_id": None}, {"index": 0, "gone": "lost"}])
def test_a_gpu_without_a_uuid_or_an_address_is_none(entry: dict[str, Any]) -> None:
    assert sample_of({"gpus": [entry]}).gpus == ()


def test_the_drivers_files_number_gpus_by_their_addresses(tmp_path: Path) -> None:
    assert listed_gpus(tmp_path).gpus == ()
    for address, uuid in (("0000:c1:00.0", "GPU-2"), ("0000:41:00.0", "GPU-1"), ("0000:81:00.0", "GPU-????-??")):
        folder = tmp_path / "gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: {address}\n")
    assert [(gpu.index, gpu.uuid, gpu.bus_id) for gpu in listed_gpus(tmp_path).gpus] == [
        (0, "GPU-1", "0000:41:00.0"),
        (2, "GPU-2", "0000:c1:00.0"),
    ]
