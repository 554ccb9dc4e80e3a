"""The daemon's /metrics: a view of the cores' states, made at each scrape."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast_daemon.core.kinds import RECOVERABLE
from holdfast_daemon.core.model import CoreState, ranks_of
from holdfast_daemon.core.naming import kind_name
from holdfast_daemon.core.recovery.standstills import has_given_up
from holdfast_daemon.core.step_summary import QUANTITIES
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_proto.v1 import store_pb2 as store

LATENCY_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
STALLED_S = 1.0
"""A rank without progress for so long is shown as stalled, whatever its deadline."""

Rows = Iterable[tuple[Sequence[str], float]]


def _fill(family: "GaugeMetricFamily | CounterMetricFamily", rows: Rows) -> Metric:
    for values, number in rows:
        family.add_metric(list(values), number)
    return family


def _gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return _fill(GaugeMetricFamily(f"holdfast_{name}", text, labels=labels), rows)


def _counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return _fill(CounterMetricFamily(f"holdfast_{name}", text, labels=labels), rows)


class DaemonCollector(Collector):
    """Everything one daemon exports. Run-level series come from the leader of the run alone."""

    def __init__(self, shells: Mapping[str, RunShell]) -> None:
        self._shells = shells

    def collect(self) -> Iterator[Metric]:
        """Yield all families. Runs on the scraper's thread: core states are immutable, so it may."""
        shells = dict(self._shells)
        led = {run: shell.state for run, shell in shells.items() if shell.leads and shell.state is not None}
        yield from _run_families(led)
        yield from _rank_families(led)
        yield from _number_families(led)
        yield from _incident_families(led)
        yield from _checkpoint_families(led)
        yield from _lost_families(led, shells)
        yield from _self_families(shells)


def _run_families(led: Mapping[str, CoreState]) -> Iterator[Metric]:
    yield _gauge(
        "run_info",
        "How the run is watched.",
        ["run", "mode", "preset"],
        (((run, _enum(store.Mode, s.spec.mode), _enum(store.Preset, s.spec.preset)), 1.0) for run, s in led.items()),
    )
    phases = [phase for phase in store.RunPhase.values() if phase]
    yield _gauge(
        "run_state",
        "1 for the phase that the run is in.",
        ["run", "state"],
        (
            ((run, _enum(store.RunPhase, phase)), float(s.record.phase == phase))
            for run, s in led.items()
            for phase in phases
        ),
    )
    single: list[tuple[str, str, dict[str, float]]] = [
        ("run_world_size", "Ranks of the run.", {r: s.world_size for r, s in led.items()}),
        ("run_generation", "Incarnation of the run's world.", {r: s.record.generation for r, s in led.items()}),
        ("run_step", "Newest step that all ranks have completed.", {r: s.record.newest_step for r, s in led.items()}),
    ]
    for name, text, rows in single:
        yield _gauge(name, text, ["run"], (((run,), float(number)) for run, number in rows.items()))
    yield _counter(
        "run_restarts",
        "Generations started after a fault.",
        ["run", "reason"],
        (
            ((run, kind_name(kind)), float(s.totals.restarts.get(kind_name(kind), 0)))
            for run, s in led.items()
            for kind in RECOVERABLE
        ),
    )


def _rank_families(led: Mapping[str, CoreState]) -> Iterator[Metric]:
    def rows() -> Rows:
        for run, state in led.items():
            ranks = list(ranks_of(state.nodes, state.record.generation).values())
            counts = {
                "starting": sum(rank.life == store.LIFE_STARTING for rank in ranks),
                "running": sum(rank.life == store.LIFE_RUNNING for rank in ranks),
                "exited": sum(rank.life == store.LIFE_EXITED for rank in ranks),
                "stalled": sum(rank.life == store.LIFE_RUNNING and rank.stalled_s > STALLED_S for rank in ranks),
            }
            yield from (((run, name), float(count)) for name, count in counts.items())

    yield _gauge("ranks", "Ranks by state; a stalled rank is also running.", ["run", "state"], rows())


def _number_families(led: Mapping[str, CoreState]) -> Iterator[Metric]:
    texts = [
        ("loss", "loss", "Training loss of the newest step, mean over the ranks that report one."),
        ("validation_loss", "validation_loss", "Newest validation loss."),
        ("loss_zscore", "loss_zscore", "Robust z of the newest loss against the median of the last 128 steps."),
        ("grad_norm", "grad_norm", "Global gradient norm of the newest step."),
        ("learning_rate", "learning_rate", "Learning rate of the newest step."),
        ("update_norm", "update_norm", "Global norm of the parameters' change in the newest step."),
        ("loss_scale", "loss_scale", "Loss scale of the newest step."),
        ("balance_loss", "balance_loss", "Load-balance loss of the newest step, mean over ranks."),
        ("mfu_ratio", "mfu", "Model FLOPs utilisation of the newest step, mean over ranks."),
        ("pipeline_bubble_ratio", "pipeline_bubble", "Share of the newest step that stages sat idle, mean over ranks."),
    ]
    for name, field, text in texts:
        numbers = ((run, getattr(s.telemetry, field)) for run, s in led.items())
        yield _gauge(name, text, ["run"], (((run,), float(number)) for run, number in numbers if number is not None))
    yield _counter(
        "nonfinite",
        "Reports of numbers that were not finite.",
        ["run", "quantity"],
        (
            ((run, quantity), float(s.totals.nonfinite.get(quantity, 0)))
            for run, s in led.items()
            for quantity in QUANTITIES
        ),
    )
    yield _counter(
        "anomalies",
        "Unusual losses: blip is one step, spike 3 of 5, missing five steps without a loss.",
        ["run", "kind"],
        (
            ((run, kind), float(s.totals.anomalies.get(kind, 0)))
            for run, s in led.items()
            for kind in ("blip", "spike", "missing")
        ),
    )
    yield _counter(
        "skipped_steps",
        "Steps that the optimizer skipped.",
        ["run", "reason"],
        (((run, "overflow"), float(s.totals.skipped_steps)) for run, s in led.items()),
    )
    single: list[tuple[str, str, dict[str, int]]] = [
        ("tokens", "Tokens trained on.", {r: s.totals.tokens for r, s in led.items()}),
        ("dropped_tokens", "Tokens dropped by expert capacity.", {r: s.totals.dropped_tokens for r, s in led.items()}),
        (
            "duplicate_steps",
            "Steps that trained on samples used before, or twice.",
            {r: s.totals.anomalies.get("duplicate_samples", 0) for r, s in led.items()},
        ),
    ]
    for name, text, rows in single:
        yield _counter(name, text, ["run"], (((run,), float(number)) for run, number in rows.items()))
    yield _counter(
        "productive_seconds",
        "Time spent in steps that were new to the run.",
        ["run"],
        (((r,), s.totals.productive_s) for r, s in led.items()),
    )


def _incident_families(led: Mapping[str, CoreState]) -> Iterator[Metric]:
    kinds = [kind for kind in store.VerdictKind.values() if kind]
    yield _counter(
        "incidents",
        "Verdicts by kind.",
        ["run", "kind"],
        (((r, kind_name(k)), float(s.totals.incidents.get(kind_name(k), 0))) for r, s in led.items() for k in kinds),
    )

    yield _counter(
        "suspicions",
        "Times that the run seemed to stand still: raised, and whether a verdict confirmed it or it resolved itself.",
        ["run", "outcome"],
        (
            ((run, outcome), float(s.totals.suspicions.get(outcome, 0)))
            for run, s in led.items()
            for outcome in ("raised", "confirmed", "resolved")
        ),
    )

    yield _counter(
        "faults_injected",
        "Faults injected on purpose.",
        ["run", "kind"],
        (((run, kind), float(count)) for run, s in led.items() for kind, count in s.totals.faults.items()),
    )

    def open_rows() -> Rows:
        for run, state in led.items():
            names = (state.record.open_incident, state.record.standstill_incident)
            present = {state.incidents[name].verdict.kind for name in names if name in state.incidents}
            for kind in kinds:
                yield (run, kind_name(kind)), float(kind in present)

    yield _gauge(
        "incident_open",
        "1 while the run stands still, or recovers, because of an incident of this kind.",
        ["run", "kind"],
        open_rows(),
    )
    yield _gauge(
        "restarts_given_up",
        "1 while the run stands still and is not restarted any more, because restarts have not helped.",
        ["run"],
        (((run,), float(has_given_up(s.record))) for run, s in led.items()),
    )
    yield _counter(
        "lost_seconds",
        "From the last progress before a fault to the next completed step, by kind of fault.",
        ["run", "cause"],
        (
            ((run, kind_name(kind)), s.totals.lost_s.get(kind_name(kind), 0.0))
            for run, s in led.items()
            for kind in RECOVERABLE
        ),
    )
    yield _counter(
        "lost_steps", "Steps done again.", ["run"], (((r,), float(s.totals.lost_steps)) for r, s in led.items())
    )
    yield _histogram(
        "detection_latency_seconds",
        "From the last progress to the verdict.",
        ["run"],
        (((run,), s.totals.detections_s) for run, s in led.items()),
    )
    yield _histogram(
        "recovery_duration_seconds",
        "From the last progress to the next completed step.",
        ["run", "stage"],
        (((run, "total"), s.totals.recoveries_s) for run, s in led.items()),
    )


def _lost_families(led: Mapping[str, CoreState], shells: Mapping[str, RunShell]) -> Iterator[Metric]:
    yield _counter(
        "commands_refused",
        "Orders that agents refused.",
        ["run"],
        (((r,), float(s.totals.refused_commands)) for r, s in led.items()),
    )
    logs = {run: shell.log for run, shell in shells.items() if run in led}
    yield _counter(
        "incident_log_attempts",
        "Versions of incidents to be appended to the log.",
        ["run"],
        (((run,), float(log.attempts_total)) for run, log in logs.items()),
    )
    yield _counter(
        "incident_log_failures",
        "Versions of incidents that could not be appended to the log.",
        ["run"],
        (((run,), float(log.failures_total)) for run, log in logs.items()),
    )
    archives = {run: shell.archive for run, shell in shells.items() if run in led}
    counts: list[tuple[str, str, dict[str, int]]] = [
        (
            "incident_folder_attempts",
            "Times that an incident's folder was to be written.",
            {run: archive.attempts_total for run, archive in archives.items()},
        ),
        (
            "incident_folder_failures",
            "Times that an incident's folder could not be written.",
            {run: archive.failures_total for run, archive in archives.items()},
        ),
        (
            "recording_dropped_turns",
            "Turns that the recording for replays had no room for.",
            {run: archive.recording.dropped_ticks_total for run, archive in archives.items()},
        ),
    ]
    for name, text, rows in counts:
        yield _counter(name, text, ["run"], (((run,), float(number)) for run, number in rows.items()))


def _histogram(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[float]]]
) -> Metric:
    family = HistogramMetricFamily(f"holdfast_{name}", text, labels=labels)
    for values, observed in rows:
        buckets = [(str(bound), float(sum(value <= bound for value in observed))) for bound in LATENCY_BUCKETS_S]
        family.add_metric(list(values), [*buckets, ("+Inf", float(len(observed)))], sum(observed))
    return family


def _checkpoint_families(led: Mapping[str, CoreState]) -> Iterator[Metric]:
    yield _gauge(
        "run_checkpoint_last_success_timestamp_seconds",
        "Unix time of the newest committed checkpoint; 0 before the first that this leader saw.",
        ["run"],
        (((r,), s.totals.last_checkpoint_unix_s) for r, s in led.items()),
    )
    yield _gauge(
        "run_checkpoint_interval_seconds",
        "Seconds expected between checkpoints at the newest step's pace; 0 when none are scheduled.",
        ["run"],
        (((r,), s.spec.checkpoint_every * s.telemetry.step_s) for r, s in led.items()),
    )


def _self_families(shells: Mapping[str, RunShell]) -> Iterator[Metric]:
    yield _gauge(
        "coordinator_leader",
        "1 while this daemon leads the run.",
        ["run"],
        (((run,), float(shell.leads)) for run, shell in shells.items()),
    )
    up = float(all(shell.store_up for shell in shells.values()))
    yield _gauge("store_up", "1 while Redis answers.", [], [((), up)])
    operations = sum(shell.counters.operations for shell in shells.values())
    failures = sum(shell.counters.failures for shell in shells.values())
    yield _counter("store_operations", "Redis operations tried.", [], [((), float(operations))])
    yield _counter("store_failures", "Redis operations failed.", [], [((), float(failures))])
    yield _counter(
        "messages_refused",
        "Values in the store that were refused: they are damaged, out of range or of another version.",
        ["run", "source"],
        (
            ((run, source), float(count))
            for run, shell in shells.items()
            for source, count in shell.refusals.counts.items()
        ),
    )
    yield _gauge("build_info", "Version.", ["version", "component"], [((version("holdfast-torch"), "daemon"), 1.0)])


def _enum(kind: "type[store.Mode] | type[store.Preset] | type[store.RunPhase]", number: int) -> str:
    """Return an enum value as metrics spell it: ``RUN_PHASE_RUNNING`` as ``running``."""
    return kind.Name(number).rpartition("_")[2].lower()
