import os

import pytest
import torch

from holdfast_trainer import start_checks


@pytest.mark.parametrize("count", [0, 2])
def test_without_files_of_a_gpu_torch_decides_and_the_environment_stays(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_checks, "_GPU_FILES", ("/no/such/file",))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    before = dict(os.environ)
    assert start_checks.has_gpu() is (count > 0)
    assert dict(os.environ) == before
