from pathlib import Path

import pytest

from holdfast_agent.devices.gpu import Gpu
from holdfast_agent.preflight import gpu_state
from holdfast_agent.preflight.gpu_state import gpu_faults
from holdfast_agent.preflight.outcomes import UnmeasuredError


def gpu(gone: str = "", **readings: float) -> Gpu:
    return Gpu(3, "GPU-3", "0000:41:00.0", gone=gone, readings=readings, throttles=("hw_slowdown",))


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (gpu("lost"), "GPU 3: the driver no longer reaches the GPU"),
        (gpu("reset_required"), "GPU 3: the driver cannot use the GPU before a reset"),
        (gpu(row_remap_failed=1.0), "GPU 3: a bad row of its memory could not be remapped: replace the GPU"),
        (
            gpu(ecc_uncorrected_errors=2.0),
            "GPU 3: its memory has had 2 errors that ECC cannot correct: reset the GPU",
        ),
    ],
)
def test_a_broken_gpu_is_a_fault(found: Gpu, fault: str) -> None:
    assert list(gpu_faults(found)) == [fault]


def test_heat_and_rows_that_wait_are_none() -> None:
    assert list(gpu_faults(gpu(row_remap_pending=1.0, row_remap_failed=0.0, ecc_uncorrected_errors=0.0))) == []


def test_a_node_without_a_driver_has_no_gpus_and_one_without_nvml_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_state, "has_nvml", lambda: False)
    assert not gpu_state.open_driver(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    with pytest.raises(UnmeasuredError, match="nvidia-ml-py is not installed"):
        gpu_state.open_driver(tmp_path)
