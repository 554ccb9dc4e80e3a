"""All detectors there are."""

from collections.abc import Mapping

from holdfast_daemon.core.detectors.allocator_retries import AllocatorRetries
from holdfast_daemon.core.detectors.data_share import DataShare
from holdfast_daemon.core.detectors.data_stall import DataStall
from holdfast_daemon.core.detectors.dead_rank import DeadRank
from holdfast_daemon.core.detectors.duplicate_samples import DuplicateSamples
from holdfast_daemon.core.detectors.framework import Detector
from holdfast_daemon.core.detectors.gradient_explosion import GradientExplosion
from holdfast_daemon.core.detectors.hung_collective import HungCollective
from holdfast_daemon.core.detectors.late_exit import LateExit
from holdfast_daemon.core.detectors.loss_spike import LossSpike
from holdfast_daemon.core.detectors.lost_node import LostNode
from holdfast_daemon.core.detectors.memory_creep import MemoryCreep
from holdfast_daemon.core.detectors.mismatched_order import MismatchedOrder
from holdfast_daemon.core.detectors.missing_loss import MissingLoss
from holdfast_daemon.core.detectors.non_finite import NonFinite
from holdfast_daemon.core.detectors.overflow_loop import OverflowLoop
from holdfast_daemon.core.detectors.silent_corruption import SilentCorruption
from holdfast_daemon.core.detectors.standstill import Standstill
from holdfast_daemon.core.detectors.straggler import Straggler
from holdfast_daemon.core.detectors.throughput_drop import ThroughputDrop
from holdfast_daemon.core.detectors.transport import Transport
from holdfast_daemon.core.detectors.unreachable import Unreachable

HANGS: tuple[type[Detector], ...] = (MismatchedOrder, HungCollective, DataStall, Transport, Standstill)
"""What can be suspected before a deadline has passed."""

ALL: tuple[type[Detector], ...] = (
    # Of several that say why the run stands still, the first has the word: a death explains a hang, and a link that is
    # down a death for want of it.
    Unreachable,
    DeadRank,
    LostNode,
    *HANGS,
    LateExit,
    NonFinite,
    MissingLoss,
    LossSpike,
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
    """Return all detectors as they begin, by name."""
    return {detector.name: detector() for detector in ALL}
