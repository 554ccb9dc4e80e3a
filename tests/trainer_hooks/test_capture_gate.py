"""While the script captures a CUDA graph, no thread of the hooks calls CUDA."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.gpu_work import GpuPoint
from holdfast_hooks.hook_errors import OnceLog


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
    with GATE.passing() as may:
        assert may
        captures = threading.Thread(target=begin, args=(graph,))
        captures.start()
        captures.join(timeout=0.05)
        assert graph.calls == []
    captures.join()
    assert graph.calls == ["begin"]
    torch.cuda.CUDAGraph.capture_end(graph)


def may_call() -> bool:
    with GATE.passing() as may:
        return may


def test_the_gate_opens_when_the_last_of_several_captures_has_ended(graph: Any) -> None:
    end = torch.cuda.CUDAGraph.capture_end
    begin(graph)
    begin(Graph())
    end(graph)
    assert not may_call()
    end(graph)
    assert may_call()
    end(graph)  # of a capture that began before the gate was installed
    assert may_call()
    begin(graph)
    assert not may_call()
    end(graph)


def test_a_second_installation_changes_nothing(graph: Any) -> None:
    begin(graph)
    GATE.install(OnceLog())
    assert not may_call()  # the capture still lasts
    torch.cuda.CUDAGraph.capture_end(graph)
    assert graph.calls == ["begin", "end"] and may_call()


def test_a_wrapper_of_another_library_stays(graph: Any) -> None:
    kind: Any = torch.cuda.CUDAGraph
    ours, original = kind.capture_begin, GATE._patches[0][2]
    kind.capture_begin = theirs = lambda self, *_, **__: ours(self)
    GATE.uninstall()
    assert vars(kind)["capture_begin"] is theirs
    kind.capture_begin = original


def test_a_torch_without_graphs_is_logged_and_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        def capture_begin(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Odd)
    before = Odd.capture_begin
    GATE.install(OnceLog())
    assert Odd.capture_begin is before
    assert ["captures of CUDA graphs are not seen" in record.getMessage() for record in caplog.records] == [True]


def test_a_process_without_torch_captures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    GATE.install(OnceLog())
    assert GATE._patches == [] and may_call()


def test_a_capture_that_fails_to_begin_leaves_the_gate_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", fail)
    GATE.install(OnceLog())
    with pytest.raises(RuntimeError, match="no memory"):
        begin(Graph())
    assert may_call()
    GATE.uninstall()
