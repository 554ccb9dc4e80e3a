"""The time of one collective: a latency for each message (alpha), and the time of its bytes on the links (beta).

The steps are those of a ring, of a double binary tree, and of pairwise exchange (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005). NCCL chooses between ring and tree by the same
sums, and the latencies are its own (``src/graph/tuning.cc``, protocol Simple).
"""

from dataclasses import dataclass
from typing import Literal

from holdfast_trainer.planning.formulas import Formula

LINK_EFFICIENCY = 0.8
"""Share of a link's rate that large collectives reach."""
CALL_LATENCY_S = 8.4e-6
"""Seconds that any call takes, without its messages."""

Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]

_STEPS = "(ranks - nodes) * alpha_node + (nodes - 1) * alpha_net"
_RING = Formula("ring", "s", f"alpha_call + {_STEPS} + (ranks - 1) / ranks * size / rate")
_RING_ALL_REDUCE = Formula(
    "ring all-reduce", "s", f"alpha_call + 2 * ({_STEPS}) + 2 * (ranks - 1) / ranks * size / rate"
)
# Halves of the data go up and down two trees at a time, in chunks: each rank sends all of it about twice. NCCL gives
# trees 90 % of a ring's rate.
_TREE_ALL_REDUCE = Formula(
    "tree all-reduce",
    "s",
    "alpha_call + 2 * ((ranks / nodes - 1) * alpha_node + ceil(log2(nodes)) * alpha_net) + 2 * size / (0.9 * rate)",
)
# Links within a node and network adapters carry their parts at the same time.
_ALL_TO_ALL = Formula(
    "pairwise all-to-all",
    "s",
    f"alpha_call + {_STEPS} + size / ranks * max((ranks / nodes - 1) / node_rate, (ranks - ranks / nodes) / net_rate)",
)
_SEND = Formula("send", "s", "alpha_call + alpha + size / rate")


@dataclass(frozen=True)
class LinkedRanks:
    """Ranks that communicate, and the links between them. Rates are in bytes/s, as large messages reach them."""

    ranks: int
    nodes: int
    node_bytes_per_s: float
    """Rate of a rank to others of its node."""
    network_bytes_per_s: float
    """Rate of a rank to other nodes."""
    ring_bytes_per_s: float
    """Rate at which data passes around a ring of all ranks."""
    node_latency_s: float
    network_latency_s: float

    def sent_bytes(self, operation: Operation, size: float) -> float:
        """Return the bytes that one rank sends.

        ``size`` is the whole of what is reduced or gathered, in bytes; of an all-to-all it is what one rank hands in.
        """
        if operation == "send":
            return size
        return (2 if operation == "all-reduce" else 1) * (self.ranks - 1) / self.ranks * size

    def duration_s(self, operation: Operation, size: float, what: str = "") -> float:
        """Return the seconds of one call. An all-reduce takes the faster of ring and tree."""
        if self.ranks == 1:
            return 0.0
        match operation:
            case "all-reduce":
                return min(self.all_reduce_s(size, what).values())
            case "all-to-all":
                rates = {"node_rate": self.node_bytes_per_s, "net_rate": self.network_bytes_per_s}
                return _ALL_TO_ALL(what, **self._steps(size), **rates)
            case "send":
                is_inside = self.nodes == 1
                alpha_s = self.node_latency_s if is_inside else self.network_latency_s
                rate = self.node_bytes_per_s if is_inside else self.network_bytes_per_s
                return _SEND(what, alpha_call=CALL_LATENCY_S, alpha=alpha_s, size=size, rate=rate)
        return _RING(what, **self._steps(size), rate=self.ring_bytes_per_s)

    def all_reduce_s(self, size: float, what: str = "") -> dict[str, float]:
        """Return the seconds of an all-reduce by algorithm, ``ring`` and ``tree``."""
        numbers = {**self._steps(size), "rate": self.ring_bytes_per_s}
        return {"ring": _RING_ALL_REDUCE(what, **numbers), "tree": _TREE_ALL_REDUCE(what, **numbers)}

    def _steps(self, size: float) -> dict[str, float]:
        return {
            "alpha_call": CALL_LATENCY_S,
            "alpha_node": self.node_latency_s,
            "alpha_net": self.network_latency_s,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "size": size,
        }
