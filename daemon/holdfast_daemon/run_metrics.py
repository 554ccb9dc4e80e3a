"""The daemon's /metrics: a view of the cores' states, made at each scrape."""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from holdfast_base.metric_family import MetricFamily
from holdfast_core.accounting.latencies import Latencies
from holdfast_core.accounting.ledger import goodput_ratio, settled_time_use
from holdfast_core.checkpointing.replicas import complete_step
from holdfast_core.detectors.speed.data_share import SLOW_DATA
from holdfast_core.model import CoreState, present_step
from holdfast_core.nodes.node_views import unfit_nodes
from holdfast_core.reading.rank_health import STALLED_S, StallRule, present_parts
from holdfast_core.recovery.standstills import has_given_up
from holdfast_daemon.clock import Clock
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_daemon.metrics import run_families as of_run
from holdfast_daemon.metrics import self_families as of_self
from holdfast_proto.message_json import enum_name
from holdfast_proto.v1 import store_pb2 as store


class DaemonCollector(Collector):
    """Everything one daemon exports. Run-level series come from the leader of the run alone."""

    def __init__(self, shells: Mapping[str, RunShell], clock: Clock) -> None:
        self._shells = shells
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield all families. Runs on the scraper's thread: core states are immutable, so it may."""
        shells = dict(self._shells)
        led = {run: shell.state for run, shell in shells.items() if shell.leads and shell.state is not None}
        yield from _state_families(led)
        yield _goodput(led, self._clock.now())
        yield from _shell_families({run: shells[run] for run in led})
        yield from _self_families(shells)


def _goodput(led: Mapping[str, CoreState], now: float) -> Metric:
    ratios = {run: goodput_ratio(state, now) for run, state in led.items()}
    return of_run.GOODPUT.metric(((run,), ratio) for run, ratio in ratios.items() if ratio is not None)


def _checkpoint_interval_s(state: CoreState) -> float:
    """Return the shorter of the two intervals that are set: a checkpoint of either kind restarts the timer."""
    spec = state.spec
    intervals_s = (spec.checkpoint_every * state.telemetry.step_s, spec.checkpoint_every_s)
    return min((interval_s for interval_s in intervals_s if interval_s > 0.0), default=0.0)


_SINGLE: tuple[tuple[MetricFamily, Callable[[CoreState], float | None]], ...] = (
    (of_run.RUN_WORLD_SIZE, lambda state: state.world_size),
    (of_run.RUN_GENERATION, lambda state: state.record.generation),
    (of_run.RUN_STEP, present_step),
    (of_run.NODES_QUARANTINED, lambda state: len(unfit_nodes(state))),
    (of_run.LOSS, lambda state: state.telemetry.loss),
    (of_run.VALIDATION_LOSS, lambda state: state.telemetry.validation_loss),
    (of_run.LOSS_ZSCORE, lambda state: state.telemetry.loss_zscore),
    (of_run.GRAD_NORM, lambda state: state.telemetry.grad_norm),
    (of_run.LEARNING_RATE, lambda state: state.telemetry.learning_rate),
    (of_run.UPDATE_NORM, lambda state: state.telemetry.update_norm),
    (of_run.LOSS_SCALE, lambda state: state.telemetry.loss_scale),
    (of_run.BALANCE_LOSS, lambda state: state.telemetry.balance_loss),
    (of_run.MFU, lambda state: state.telemetry.mfu),
    (of_run.PIPELINE_BUBBLE, lambda state: state.telemetry.pipeline_bubble),
    (of_run.REPLAY, lambda state: state.telemetry.replay_s),
    (of_run.TOKENS, lambda state: state.totals.tokens),
    (of_run.DROPPED_TOKENS, lambda state: state.totals.dropped_tokens),
    (of_run.DUPLICATE_STEPS, lambda state: state.totals.anomalies.get("duplicate_samples", 0)),
    (of_run.SLOW_DATA, lambda state: state.totals.anomalies.get(SLOW_DATA, 0)),
    (of_run.RESTARTS_GIVEN_UP, lambda state: has_given_up(state.record)),
    (of_run.LOST_STEPS, lambda state: state.totals.lost_steps),
    (of_run.PRODUCTIVE_TIME, lambda state: state.totals.productive_s),
    (of_run.RUN_CHECKPOINT_LAST_SUCCESS, lambda state: state.totals.last_checkpoint_unix_s),
    (of_run.RUN_CHECKPOINT_INTERVAL, _checkpoint_interval_s),
    (of_run.REPLICA_STEP, complete_step),
    (of_run.COMMANDS_REFUSED, lambda state: state.totals.refused_commands),
)
"""Families with one sample for each run, and its value; None: there is no such number yet."""


def ranks_by_state(state: CoreState) -> Mapping[str, int]:
    """Return the number of ranks by state, as the console counts them."""
    return StallRule.of(state).counts(present_parts(state))


def _open_kinds(state: CoreState) -> Mapping[str, bool]:
    names = (state.record.open_incident, state.record.standstill_incident)
    present: set[int] = {state.incidents[name].verdict.kind for name in names if name in state.incidents}
    if not _ranks_move(state):
        present |= state.left_down_by
    return {name: kind in present for name, kind in of_run.INCIDENT_KINDS.items()}


def _ranks_move(state: CoreState) -> bool:
    """Whether a rank makes progress: a job may continue without a rank that it has lost."""
    return any(part.least_live_stall_s <= STALLED_S for part in present_parts(state))


_BY_LABEL: tuple[tuple[MetricFamily, Callable[[CoreState], Mapping[str, float]]], ...] = (
    (
        of_run.RUN_STATE,
        lambda state: {name: phase == state.record.phase for name, phase in of_run.RUN_STATES.items()},
    ),
    (of_run.RANKS, ranks_by_state),
    (of_run.RUN_RESTARTS, lambda state: state.totals.restarts),
    (
        of_run.LOGGED,
        lambda state: {name: number.value for name, number in sorted(state.telemetry.logged.items())},
    ),
    (of_run.NONFINITE, lambda state: state.totals.nonfinite),
    (of_run.SUSPICIONS, lambda state: state.totals.suspicions),
    (of_run.ANOMALIES, lambda state: state.totals.anomalies),
    (of_run.SKIPPED_STEPS, lambda state: {"overflow": state.totals.skipped_steps}),
    (of_run.INCIDENTS, lambda state: state.totals.incidents),
    (of_run.FAULTS_INJECTED, lambda state: state.totals.faults),
    (of_run.INCIDENT_OPEN, _open_kinds),
    (of_run.RUN_TIME, settled_time_use),
    (of_run.LOST_TIME, lambda state: state.totals.lost_s),
)
"""Families with a second label, and its values' samples. A value of a fixed set that has no sample is exported as 0."""

_HISTOGRAMS: tuple[tuple[MetricFamily, tuple[str, ...], Callable[[CoreState], Latencies]], ...] = (
    (of_run.DETECTION_LATENCY, (), lambda state: state.totals.detections),
    (of_run.RECOVERY_DURATION, ("total",), lambda state: state.totals.recoveries),
)
"""Histograms, the values of the labels that follow the run, and what was counted."""


def _state_families(led: Mapping[str, CoreState]) -> Iterator[Metric]:
    yield of_run.RUN_INFO.metric(((run, *_how_watched(state.spec)), 1) for run, state in led.items())
    for family, value in _SINGLE:
        numbers = [((run,), value(state)) for run, state in led.items()]
        yield family.metric((labels, number) for labels, number in numbers if number is not None)
    for family, by_label in _BY_LABEL:
        yield family.metric(
            ((run, label), number)
            for run, state in led.items()
            for label, number in _with_zeros(family, by_label(state)).items()
        )
    for family, labels, latencies in _HISTOGRAMS:
        counted = {run: latencies(state) for run, state in led.items()}
        yield family.histogram(((run, *labels), one.counts, one.sum_s) for run, one in counted.items())


def _how_watched(spec: store.RunSpec) -> tuple[str, str]:
    return enum_name(store.Mode, spec.mode), enum_name(store.Preset, spec.preset)


def _with_zeros(family: MetricFamily, samples: Mapping[str, float]) -> Mapping[str, float]:
    """Return the samples of the label's fixed set, 0 where there is none; all samples if it has no fixed set."""
    fixed = family.values.get(family.labels[-1])
    return samples if fixed is None else {value: samples.get(value, 0) for value in fixed}


def _shell_families(leading: Mapping[str, RunShell]) -> Iterator[Metric]:
    """Yield what a leader counts outside the core's state."""
    counts: tuple[tuple[MetricFamily, Callable[[RunShell], float]], ...] = (
        (of_run.LATE_TICKS, lambda shell: shell.pace.late_total),
        (of_run.EVENTS_MISSED, lambda shell: shell.counters.events_missed),
        (of_run.LAST_TICK, lambda shell: shell.pace.finished_s),
        (of_run.INCIDENT_LOG_ATTEMPTS, lambda shell: shell.log.attempts_total),
        (of_run.INCIDENT_LOG_FAILURES, lambda shell: shell.log.failures_total),
        (of_run.INCIDENT_FOLDER_ATTEMPTS, lambda shell: shell.archive.attempts_total),
        (of_run.INCIDENT_FOLDER_FAILURES, lambda shell: shell.archive.failures_total),
        (of_run.RECORDING_DROPPED_TICKS, lambda shell: shell.archive.recording.dropped_ticks_total),
        (of_run.HISTORY_ROWS, lambda shell: shell.history.rows_total),
        (of_run.HISTORY_DROPPED, lambda shell: shell.history.dropped_total),
        (of_run.HISTORY_WRITE_ATTEMPTS, lambda shell: shell.history.writes_total),
        (of_run.HISTORY_WRITE_FAILURES, lambda shell: shell.history.write_failures_total),
    )
    for family, count in counts:
        yield family.metric(((run,), count(shell)) for run, shell in leading.items())
    reported = {run: shell.notifier.counts for run, shell in leading.items()}
    counted = {run: counts for run, counts in reported.items() if counts is not None}
    yield of_run.NOTIFICATIONS.metric(
        ((run, *labels), number) for run, counts in counted.items() for labels, number in dict(counts.outcomes).items()
    )
    yield of_run.NOTIFICATION_ATTEMPTS.metric(
        ((run, name), number) for run, counts in counted.items() for name, number in dict(counts.attempts).items()
    )


def _self_families(shells: Mapping[str, RunShell]) -> Iterator[Metric]:
    yield of_self.COORDINATOR_LEADER.metric(((run,), shell.leads) for run, shell in shells.items())
    yield of_self.STORE_UP.metric([((), all(shell.store_up for shell in shells.values()))])
    yield of_self.STORE_OPERATIONS.metric([((), sum(shell.counters.operations for shell in shells.values()))])
    yield of_self.STORE_FAILURES.metric([((), sum(shell.counters.failures for shell in shells.values()))])
    yield of_self.MESSAGES_REFUSED.metric(
        ((run, source), count) for run, shell in shells.items() for source, count in shell.refusals.counts.items()
    )
    yield of_self.BUILD_INFO.metric([((version("holdfast-torch"), "daemon"), 1)])
