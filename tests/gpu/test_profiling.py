"""A profile of a rank on a GPU."""

import gzip
import json
import pickle
import time
from pathlib import Path

import pytest
import torch

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.profiling.step_profiler import StepProfiler
from holdfast_proto.v1.session_pb2 import ProfileDone, ProfileSteps

pytestmark = pytest.mark.gpu


def profiled(gpu: torch.device, folder: Path) -> ProfileDone:
    """Train steps on the GPU until a profile of two of them has ended."""
    profiler = StepProfiler(0, OnceLog())
    weights = torch.ones(64, 64, device=gpu)
    assert profiler.request(ProfileSteps(request="p", steps=2, directory=str(folder), patience_s=60.0)) == (True, "")
    deadline = time.monotonic() + 120.0
    step = 0
    while time.monotonic() < deadline:
        weights = (weights @ weights).clamp(-1.0, 1.0)
        if profiler.due:
            profiler.at_boundary(step)
        step += 1
        if (done := profiler.take_done()) is not None:
            return done
        time.sleep(0.001)
    raise AssertionError("the profile did not end")


def test_a_profile_on_a_gpu_has_its_kernels_and_its_memory(gpu: torch.device, tmp_path: Path) -> None:
    torch.ones(1, device=gpu)  # a rank that has not used its GPU yet is profiled without it
    done = profiled(gpu, tmp_path)
    assert done.problem == ""
    trace, memory = done.files
    with gzip.open(tmp_path / trace) as file:
        categories = {event.get("cat") for event in json.load(file)["traceEvents"]}
    assert "kernel" in categories
    with gzip.open(tmp_path / memory) as file:
        snapshot = pickle.load(file)
    assert any(snapshot["device_traces"])
    assert not torch._C._cuda_isHistoryEnabled()


def test_a_history_of_memory_that_the_script_records_stays(gpu: torch.device, tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        assert profiled(gpu, tmp_path).problem == ""
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
