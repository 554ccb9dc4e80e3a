"""While the script captures a CUDA graph, no thread of the hooks calls CUDA."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.gpu_work import GpuPoint
from holdfast_hooks.once import OnceLog


class Graph:
    """What a captured graph notes of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for a graph: torch for the CPU captures none."""
    kind: Any = torch.cuda.CUDAGraph
    monkeypatch.setattr(kind, "capture_begin", lambda self, *_, **__: self.calls.append("begin"))
    monkeypatch.setattr(kind, "capture_end", lambda self: self.calls.append("end"))
    before = vars(kind)["capture_begin"]
    GATE.install(OnceLog())
    yield Graph()
    GATE.uninstall()
    assert vars(kind)["capture_begin"] is before


class Event:
    def __init__(self) -> None:
        self.queries = 0

    def query(self) -> bool:
        self.queries += 1
        return True


def begin(graph: Any) -> None:
    torch.cuda.CUDAGraph.capture_begin(graph, capture_error_mode="global")


def test_no_event_is_queried_during_a_capture(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_hooks.gpu_work._on", lambda _, call: call())
    event = Event()
    point = GpuPoint(((0, event),))
    assert point.query()
    begin(graph)
    assert not point.query()
    waits = threading.Thread(target=point.synchronize)
    waits.start()
    assert event.queries == 1
    torch.cuda.CUDAGraph.capture_end(graph)
    waits.join()
    assert point.query()
    assert graph.calls == ["begin", "end"]


def test_a_capture_waits_for_a_call_that_is_under_way(graph: Any) -> None:
    with GATE.passing() as may_call:
        assert may_call
        captures = threading.Thread(target=begin, args=(graph,))
        captures.start()
        captures.join(timeout=0.05)
        assert graph.calls == []
    captures.join()
    assert graph.calls == ["begin"]
    torch.cuda.CUDAGraph.capture_end(graph)


def test_a_capture_that_fails_to_begin_leaves_the_gate_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", fail)
    GATE.install(OnceLog())
    with pytest.raises(RuntimeError, match="no memory"):
        begin(Graph())
    with GATE.passing() as may_call:
        assert may_call
    GATE.uninstall()
