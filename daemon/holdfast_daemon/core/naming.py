"""How enums are spelled for people and metrics."""

from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import Phase


def phase_name(phase: "Phase") -> str:
    """Return a phase as people spell it: ``forward_backward``."""
    return Phase.Name(phase).removeprefix("PHASE_").lower()


def kind_name(kind: "store.VerdictKind | int") -> str:
    """Return a verdict's kind as metrics and people spell it: ``hung_collective``."""
    return store.VerdictKind.Name(kind).removeprefix("VERDICT_KIND_").lower()
