"""Metric families about a daemon itself, which standbys export, too: the only place with their names and meanings.

`DaemonCollector` and `TickMetrics` fill them; docs/metrics.md, the dashboards and their tests read them.
"""

from holdfast_base.metric_family import counter, declared_in, gauge, histogram
from holdfast_core.detectors import registry as detectors
from holdfast_daemon.validation.refused_values import SOURCES

TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
DETECTORS = tuple(detector.name for detector in detectors.ALL)

COORDINATOR_LEADER = gauge("coordinator_leader", "run", "1 if this daemon leads the run, 0 if it is a standby.")
TICK_DURATION = histogram(
    "coordinator_tick_duration_seconds", "", "Duration of one tick of a run's core.", buckets=TICK_BUCKETS_S
)
SLOW_TICKS = counter("coordinator_slow_ticks_total", "", "Ticks that took longer than the time between two ticks.")
FAILED_TICKS = counter(
    "coordinator_failed_ticks_total",
    "",
    "Ticks of a run's core that raised an exception. The daemon passes over the input that caused it; its log has the "
    "traceback.",
)
RUN_SHELL_ATTEMPTS = counter(
    "run_shell_attempts_total", "", "Times that the daemon began to lead a run or to stand by for it."
)
RUN_SHELL_FAILURES = counter(
    "run_shell_failures_total", "", "Times that leading a run failed and the daemon began it anew."
)
RUN_NAMES_REFUSED = counter(
    "run_names_refused_total",
    "",
    "Entries in the list of runs that cannot be the name of a run, counted each time the daemon reads the list.",
)
MESSAGES_REFUSED = counter(
    "messages_refused_total",
    "run source",
    "Values in Redis that the daemon refused: damaged, out of range, of another version of Holdfast, not signed with"
    " the run's key, or written before what it knows.",
    source=SOURCES,
)
DETECTOR_ATTEMPTS = counter(
    "detector_attempts_total", "detector", "Times that the daemon has called a detector.", detector=DETECTORS
)
DETECTOR_TIME = counter("detector_seconds_total", "detector", "Time that a detector took.", detector=DETECTORS)
DETECTOR_FAILURES = counter(
    "detector_failures_total", "detector", "Calls of a detector that raised an exception.", detector=DETECTORS
)
STORE_UP = gauge("store_up", "", "1 while Redis answers, else 0.")
STORE_OPERATIONS = counter("store_operations_total", "", "Calls of Redis.")
STORE_FAILURES = counter("store_failures_total", "", "Calls of Redis that failed.")
BUILD_INFO = gauge("build_info", "version component", "Version of this process; always 1.", component=("daemon",))

FAMILIES = declared_in(globals())
