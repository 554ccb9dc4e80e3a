"""The only place that touches torch's private Flight Recorder API."""

import sys
from collections.abc import Callable
from typing import cast

Dump = Callable[[bool, bool], bytes]
"""Torch's dump: (include collectives, only active) -> JSON."""


class RecorderUnavailableError(Exception):
    """This torch has no Flight Recorder with an interface that we know."""


def find_dump() -> Dump | None:
    """Return torch's dump function, or None while there is no process group.

    It never imports torch. Raises RecorderUnavailableError if this torch does not have the function.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    bindings = sys.modules["torch"]._C._distributed_c10d
    dump = getattr(bindings, "_dump_fr_trace_json", None)
    if dump is None:
        raise RecorderUnavailableError(f"torch {sys.modules['torch'].__version__} has no _dump_fr_trace_json")
    return cast(Dump, dump)
