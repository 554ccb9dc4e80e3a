"""The check of a node finds that a healthy GPU computes and copies right."""

import asyncio
from pathlib import Path

import pytest
import torch

from holdfast_agent.preflight.measuring import CheckedPlaces
from holdfast_agent.preflight.node_check import check_node
from holdfast_proto.v1 import store_pb2 as store

pytestmark = pytest.mark.gpu


@pytest.mark.usefixtures("gpu")
def test_a_healthy_gpu_passes_its_check(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    places = CheckedPlaces(folders=(str(tmp_path),), shm_directory="/dev/shm", address="127.0.0.1")
    check = asyncio.run(check_node(places, limit_s=120.0))
    assert not check.failures
    figures = {(figure.kind, figure.device): figure.value for figure in check.figures}
    # Other work on the machine leaves out all speeds, and then says so.
    for kind in (store.CHECK_KIND_GPU_GEMM, store.CHECK_KIND_GPU_MEMORY):
        assert figures.get((kind, 0), 0.0) > 1e9 or check.unmeasured
