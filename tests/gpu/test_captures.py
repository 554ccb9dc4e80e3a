"""A script captures a CUDA graph while threads of the hooks have something to ask of the GPU."""

import threading

import pytest
import torch

from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.gpu_work import GpuPoint
from holdfast_hooks.hook_errors import OnceLog

pytestmark = pytest.mark.gpu


def test_a_graph_is_captured_while_our_threads_have_numbers_to_wait_for(gpu: torch.device) -> None:
    GATE.install(OnceLog())
    numbers = torch.ones(1 << 20, device=gpu)
    over = threading.Event()
    asked: list[bool] = []

    def ask() -> None:
        while not over.is_set():
            asked.append(point.query())

    point = GpuPoint.now([gpu.index])
    thread = threading.Thread(target=ask)
    try:
        torch.cuda._sleep(1 << 20)  # type: ignore[no-untyped-call]
        thread.start()
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                numbers.mul_(1.0)
            graph.replay()
    finally:
        over.set()
        thread.join()
        GATE.uninstall()
    assert asked
