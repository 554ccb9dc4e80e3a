"""How much of the time the GPUs of ranks run kernels: a second witness of a slow rank, never the first one.

Let u be the share of time in which a kernel ran on a rank's GPU, and p the median of its peers'. A high u alone proves
nothing: a kernel of NCCL runs while it waits for other ranks. So the peers of a slow rank show a p of nearly 1 as they
wait for it. That leaves two signs:

    u < p - 0.2                              its GPU has too little to do: the host holds it up
    u >= 0.9 and low clocks of its GPU       its GPU always works, and slowly

If u is low and the clocks are low, the signs contradict each other, and nothing is said. The same holds if one of the
shares is unknown. With gloo, peers wait on their hosts, and p is low: that shows neither.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

from holdfast_proto.v1 import store_pb2 as store

LEAST_SAMPLES = 5
"""Samples of a share. The driver takes one over 1/6 s to 1 s, which may be a part of a step only."""

_CLEARLY_LESS = 0.2
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class GpuUse:
    """The samples of one rank's GPU up to a moment."""

    uuid: str
    utilization_sum: float
    samples: int


def gpu_uses(ranks: Mapping[int, store.RankState]) -> dict[int, GpuUse]:
    """Return the samples of each rank whose GPU has some. A GPU that several ranks use is none of theirs alone."""
    uses = {
        number: GpuUse(rank.gpu.uuid, rank.gpu.utilization_sum, rank.gpu.utilization_samples)
        for number, rank in ranks.items()
        if rank.HasField("gpu") and rank.gpu.utilization_samples
    }
    if not uses:
        return uses
    users = Counter(rank.gpu.uuid for rank in ranks.values() if rank.HasField("gpu"))
    return {number: use for number, use in uses.items() if users[use.uuid] == 1}


def utilizations(before: Mapping[int, GpuUse], after: Mapping[int, GpuUse]) -> dict[int, float]:
    """Return the share of time, 0 to 1, in which a kernel ran on the GPU of each rank between two moments."""
    shares = {}
    for number, now in after.items():
        then = before.get(number)
        if then is None or then.uuid != now.uuid:
            continue
        samples, added = now.samples - then.samples, now.utilization_sum - then.utilization_sum
        if samples >= LEAST_SAMPLES and 0.0 <= added <= samples:  # else the agent has started anew
            shares[number] = added / samples
    return shares


def add_witness(detail: store.StragglerDetail, rank: int, shares: Mapping[int, float], peers: Collection[int]) -> None:
    """Add to the times of a slow rank what the use of its GPU shows.

    Args:
        detail: with the reasons why the clocks of the rank's GPU are low, if they are.
        rank: the slow rank.
        shares: utilization of all ranks of which it is known.
        peers: ranks that do the same work and are not slow.
    """
    of_peers = [shares[peer] for peer in peers if peer in shares]
    if rank in shares:
        detail.utilization_ratio = shares[rank]
    if of_peers:
        detail.peers_utilization_ratio = median(of_peers)
    if rank in shares and of_peers:
        detail.side = _side(detail)


def _side(detail: store.StragglerDetail) -> "store.SlowSide":
    own, has_low_clocks = detail.utilization_ratio, bool(detail.throttles)
    if own < detail.peers_utilization_ratio - _CLEARLY_LESS and not has_low_clocks:
        return store.SLOW_SIDE_HOST
    if own >= _NEARLY_ALL and has_low_clocks:
        return store.SLOW_SIDE_GPU
    return store.SLOW_SIDE_UNSPECIFIED
