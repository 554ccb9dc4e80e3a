"""How torch's profiler must behave for profiles of live ranks."""

import importlib
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule


def flags() -> None:
    """A profiler that runs shows in both flags, and one that warms up only in its own action."""
    autograd: Any = torch.autograd
    assert not autograd._profiler_enabled()
    assert not autograd_profiler._is_profiler_enabled
    with profile(activities=[ProfilerActivity.CPU]):
        assert autograd._profiler_enabled()
        assert autograd_profiler._is_profiler_enabled
    warming = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=1))
    warming.start()
    warming.step()
    assert warming.current_action == ProfilerAction.WARMUP
    assert not warming.acc_events
    assert warming.profiler is not None
    assert warming.profiler.kineto_results is None
    assert not autograd._profiler_enabled()
    warming.stop()
    assert warming.profiler.kineto_results is not None


def starters() -> None:
    """Every profiler is started through the two functions, which are found in their module at each call."""
    called = []
    originals = {name: getattr(autograd_profiler, name) for name in ("_prepare_profiler", "_enable_profiler")}

    def noting(name: str) -> Any:
        def starter(*arguments: Any, **keywords: Any) -> Any:
            called.append(name)
            return originals[name](*arguments, **keywords)

        return starter

    try:
        for name in originals:
            setattr(autograd_profiler, name, noting(name))
        with profile(activities=[ProfilerActivity.CPU]):
            torch.ones(2).add(1)
    finally:
        for name, original in originals.items():
            setattr(autograd_profiler, name, original)
    assert called == ["_prepare_profiler", "_enable_profiler"]


def slow_import() -> None:
    """Only this module is what the first start would import: without it, the start takes a second."""
    assert hasattr(torch, "_inductor")
    assert importlib.import_module("torch._inductor.config")


def memory_history() -> None:
    """The functions exist in every build; the flag only in builds with CUDA."""
    assert callable(torch.cuda.memory._record_memory_history)
    assert callable(torch.cuda.memory._snapshot)
    assert torch.version.cuda is None or callable(torch._C._cuda_isHistoryEnabled)
