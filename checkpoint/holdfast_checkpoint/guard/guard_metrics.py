"""The metrics of a guard: their families, and the collector that fills them."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from holdfast_base.metric_family import counter, declared_in, gauge
from holdfast_checkpoint.guard.damage import Reason
from holdfast_checkpoint.guard.examination import Examined
from holdfast_checkpoint.guard.folder_guard import FolderGuard, Judgment, Outcome

GUARD_NEWEST_STEP = gauge(
    "guard_newest_step", "directory", "Step of the newest complete checkpoint; -1 before the first, or if unknown."
)
GUARD_NEWEST_IS_GOOD = gauge(
    "guard_newest_is_good",
    "directory",
    "1 if the newest complete checkpoint is good, or if there is none yet; 0 if something is wrong with it.",
)
GUARD_NEWEST_GOOD_STEP = gauge(
    "guard_newest_good_step", "directory", "Step of the newest good checkpoint; -1 if there is none, or if unknown."
)
GUARD_NEWEST_GOOD_TIME = gauge(
    "guard_newest_good_timestamp_seconds",
    "directory",
    "Unix time at which the newest good checkpoint was written; 0 if there is none.",
)
GUARD_CHECKPOINTS = counter("guard_checkpoints_total", "directory", "Checkpoints that the guard has judged.")
GUARD_BAD_CHECKPOINTS = counter(
    "guard_bad_checkpoints_total",
    "directory reason",
    "Checkpoints with something wrong. One that is wrong in two ways counts under both reasons.",
    reason=tuple(reason.value for reason in Reason),
)
GUARD_UNREADABLE = counter(
    "guard_unreadable_checkpoints_total", "directory", "Checkpoints that could not be read when they were looked at."
)
GUARD_READ = counter("guard_read_bytes_total", "directory", "Bytes that the guard has read for its judgments.")
GUARD_LAST_LOOK = gauge(
    "guard_last_look_timestamp_seconds", "directory", "Unix time of the guard's newest complete look at the folder."
)

FAMILIES = declared_in(globals())


@dataclass
class GuardNumbers:
    """Numbers of a guard. The guard's thread writes them, and the server's thread reads them."""

    directory: str
    newest: Examined | None = None
    newest_good: Examined | None = None
    judged_total: int = 0
    unreadable_total: int = 0
    read_bytes_total: int = 0
    bad_total: Counter[Reason] = field(default_factory=Counter)
    looked_unix_s: float = 0.0

    def count(self, judgment: Judgment) -> None:
        """Count a judgment."""
        if judgment.outcome is Outcome.UNREADABLE:
            self.unreadable_total += 1
            return
        self.judged_total += 1
        self.bad_total.update({finding.reason for finding in judgment.findings})
        if judgment.examined is not None:
            self.read_bytes_total += judgment.examined.bytes_read

    def look_ended(self, guard: FolderGuard) -> None:
        """Take over what the guard knows after a look."""
        self.newest, self.newest_good = guard.newest, guard.newest_good
        self.looked_unix_s = time.time()


class GuardCollector(Collector):
    """Exports the numbers of a guard."""

    def __init__(self, numbers: GuardNumbers) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry collects only when it is asked."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        numbers, label = self._numbers, (self._numbers.directory,)
        newest, good = numbers.newest, numbers.newest_good
        yield GUARD_NEWEST_STEP.metric([(label, _step(newest))])
        yield GUARD_NEWEST_IS_GOOD.metric([(label, newest is None or newest.is_good)])
        yield GUARD_NEWEST_GOOD_STEP.metric([(label, _step(good))])
        yield GUARD_NEWEST_GOOD_TIME.metric([(label, good.candidate.newest_mtime_s if good is not None else 0.0)])
        yield GUARD_CHECKPOINTS.metric([(label, numbers.judged_total)])
        yield GUARD_BAD_CHECKPOINTS.metric([((*label, each.value), numbers.bad_total[each]) for each in Reason])
        yield GUARD_UNREADABLE.metric([(label, numbers.unreadable_total)])
        yield GUARD_READ.metric([(label, numbers.read_bytes_total)])
        yield GUARD_LAST_LOOK.metric([(label, numbers.looked_unix_s)])


def _step(examined: Examined | None) -> int:
    return -1 if examined is None or examined.step is None else examined.step
