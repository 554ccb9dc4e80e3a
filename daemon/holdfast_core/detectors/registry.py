"""The list of all detectors."""

from collections.abc import Mapping

from holdfast_core.detectors.deaths.dead_rank import DeadRank
from holdfast_core.detectors.deaths.late_exit import LateExit
from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.hangs.device_call import DeviceCall
from holdfast_core.detectors.hangs.gpu_fault import GpuFault
from holdfast_core.detectors.hangs.lost_node import LostNode
from holdfast_core.detectors.hangs.mismatched_order import MismatchedOrder
from holdfast_core.detectors.hangs.root_ranks import DataStall, HungCollective
from holdfast_core.detectors.hangs.standstill import Standstill
from holdfast_core.detectors.hangs.transport import Transport
from holdfast_core.detectors.hangs.unreachable import Unreachable
from holdfast_core.detectors.numbers.duplicate_samples import DuplicateSamples
from holdfast_core.detectors.numbers.gradient_explosion import GradientExplosion
from holdfast_core.detectors.numbers.loss_divergence import LossDivergence
from holdfast_core.detectors.numbers.loss_rise import LossRise
from holdfast_core.detectors.numbers.loss_spike import LossSpike
from holdfast_core.detectors.numbers.missing_loss import MissingLoss
from holdfast_core.detectors.numbers.non_finite import NonFinite, OverflowLoop
from holdfast_core.detectors.numbers.silent_corruption import SilentCorruption
from holdfast_core.detectors.speed.allocator_retries import AllocatorRetries
from holdfast_core.detectors.speed.data_share import DataShare
from holdfast_core.detectors.speed.memory_creep import MemoryCreep
from holdfast_core.detectors.speed.straggler import Straggler
from holdfast_core.detectors.speed.throughput_drop import ThroughputDrop

HANGS: tuple[type[Detector], ...] = (
    GpuFault,
    DeviceCall,
    MismatchedOrder,
    HungCollective,
    DataStall,
    Transport,
    Standstill,
)
"""Detectors of what can be suspected before a deadline has passed."""

ALL: tuple[type[Detector], ...] = (
    # Of several that say why the run stands still, the first wins: a death explains a hang, and a broken link explains
    # a death.
    Unreachable,
    DeadRank,
    LostNode,
    *HANGS,
    LateExit,
    NonFinite,
    MissingLoss,
    LossSpike,
    LossRise,
    LossDivergence,
    OverflowLoop,
    DuplicateSamples,
    SilentCorruption,
    GradientExplosion,
    Straggler,
    DataShare,
    ThroughputDrop,
    MemoryCreep,
    AllocatorRetries,
)


def fresh() -> Mapping[str, Detector]:
    """Return all detectors in their first state, by name."""
    return {detector.name: detector() for detector in ALL}
