"""Captures and restores the random states of a process, so that a restored run draws the same numbers."""

import importlib
import random
import struct
import sys
from types import ModuleType
from typing import Any

KEY = "_random"
"""Key of the random states in a snapshot's tree."""

_WORDS = struct.Struct("<625I")


def capture(gpu: int | None = None) -> dict[str, Any]:
    """Return the state of every generator that this process has loaded (training thread).

    Args:
        gpu: index of the GPU on which this rank computes; None: the current one, if this process uses CUDA.
    """
    states: dict[str, Any] = {"python": _capture_python()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = _capture_numpy(numpy)
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state("cuda" if gpu is None else gpu)
    return states


def restore(states: dict[str, Any], gpu: int | None = None) -> None:
    """Restore the states that :func:`capture` returned, and import the generators' modules if necessary.

    Raises ValueError if a state of the host is damaged.

    Args:
        gpu: as for :func:`capture`.
    """
    try:
        _restore_host(states)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError, struct.error) as error:
        raise ValueError(f"the random states are damaged: {error!r}") from error
    if "torch" in states and "cuda" in states:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"], "cuda" if gpu is None else gpu)


def _restore_host(states: dict[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, _WORDS.unpack(words), gauss))
    if "numpy" in states:
        _restore_numpy(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])


def _capture_python() -> list[Any]:
    version, words, gauss = random.getstate()
    return [version, _WORDS.pack(*words), gauss]


def _capture_numpy(numpy: ModuleType) -> list[Any]:
    name, key, position, has_gauss, gauss = numpy.random.get_state()
    return [name, key.tobytes(), int(position), int(has_gauss), float(gauss)]


def _restore_numpy(state: list[Any]) -> None:
    numpy = importlib.import_module("numpy")
    name, key, position, has_gauss, gauss = state
    numpy.random.set_state((name, numpy.frombuffer(key, dtype=numpy.uint32), position, has_gauss, gauss))
