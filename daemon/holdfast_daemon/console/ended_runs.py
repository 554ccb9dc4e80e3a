"""The console of runs that have ended, from the files that their daemon has left in its folder."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from google.protobuf.json_format import ParseError
from prometheus_client.registry import CollectorRegistry

from holdfast_base.text import moment
from holdfast_core import coordinator
from holdfast_core.model import CoreState, Logged, Telemetry
from holdfast_daemon.clock import Clock
from holdfast_daemon.console.console_server import ConsoleServer
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_daemon.daemon_options import DaemonOptions
from holdfast_daemon.history.history_reader import HistoryError, RunHistory
from holdfast_daemon.history.rows import StepRow
from holdfast_daemon.incidents.archive import incidents_in_log, state_at_end
from holdfast_daemon.leadership.outbox import StoreCounters
from holdfast_daemon.leadership.requests import Requests
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_daemon.validation.refused_values import Refusals
from holdfast_proto import run_files
from holdfast_proto.message_json import from_json
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

MAY_RUN_S = 90.0
"""A daemon renews what it keeps of a run every 30 s at least. One that wrote so lately may still lead the run."""
_NUMBERS = ("loss", "validation_loss", "grad_norm", "learning_rate", "tokens_per_s")
_OF_STEPS = ("step_s", "mfu", "loss_scale")
_SAME_MOMENT_S = 2.0


class NothingKeptError(Exception):
    """No daemon has kept the run, or it may still run: one line for people."""


@dataclass(kw_only=True)
class EndedRun:
    """The newest start of a run, as its daemon knew it last: what a console shows of it."""

    run_name: str
    state: CoreState | None
    refusals: Refusals
    store_up: bool = True
    leads: bool = True
    requests: Requests = field(default_factory=Requests)
    counters: StoreCounters = field(default_factory=StoreCounters)

    @property
    def outcome(self) -> str:
        """How the run ended, in words."""
        return self.state.record.outcome if self.state is not None else ""


def read_ended(
    directory: Path, run: str, now: float, *, last: control.RunStatus | None = None, is_over: bool = False
) -> EndedRun:
    """Return the newest start of a run from the folder of its daemon. ``now``: Unix time.

    ``last``: the status with which the run was left, if its daemon could not keep the end. ``is_over``: the caller
    knows that nothing of the run is left. Raises NothingKeptError.
    """
    try:
        history = RunHistory(run_files.history(directory, run))
        instance = next((start.instance for start in reversed(history.starts())), "")
        found = history.kept_state(instance)
        final = history.final(instance) or {}
        commits = [row.step for row in history.checkpoints(instance)]
        newest = next(iter(history.steps_after(instance, history.newest_row(instance) - 1, 1)), None)
    except HistoryError as error:
        raise NothingKeptError(f"there is nothing to show of run {run}: {error}") from error
    if found is None:
        raise NothingKeptError(
            f"the daemon of run {run} has kept too little of it for the console: use `holdfast report {run}`"
        )
    kept_unix_s, kept = found
    if kept.record.phase not in ENDED:
        seen_unix_s = max(kept_unix_s, newest.unix_s if newest is not None else 0.0)
        if not is_over and now - seen_unix_s < MAY_RUN_S:
            raise NothingKeptError(
                f"run {run} may still run, its daemon wrote at {moment(seen_unix_s)}: name the daemon with --control"
            )
        _cut_short(kept, newest, kept_unix_s, seen_unix_s)
        if last is not None:
            _leave(kept, last)
    for node in kept.nodes.values():
        node.checkpoints.extend(set(commits[-1:]) - set(node.checkpoints))  # a commit after the last report
        for rank in node.ranks:
            del rank.snapshots[:]  # they were in memory
    telemetry = _telemetry(final, newest, kept.record.generation)
    state = coordinator.begin(kept.spec, kept.record)
    return EndedRun(
        run_name=run,
        refusals=Refusals(run),
        state=replace(
            state,
            nodes=dict(kept.nodes),
            telemetry=telemetry,
            incidents=_incidents(directory, state),
        ),
    )


def serve_ended(directory: Path, runs: Mapping[str, EndedRun]) -> ConsoleServer:
    """Return a console that serves these runs, with the port and the tokens of their daemon. Raises OSError."""
    options = DaemonOptions(
        name="none",
        store_url="",
        directory=directory,
        control=directory / "no-daemon",
        metrics_address="",
        metrics_port=0,
        lease_s=0.0,
    )
    loop = asyncio.new_event_loop()
    loop.close()  # nothing can be asked of a run that has ended
    clock = Clock()
    ticks = TickMetrics(CollectorRegistry())
    started_unix_s = clock.now()
    return ConsoleServer(
        WatchedDaemon(
            options=options,
            runs=runs,
            clock=clock,
            ticks=ticks,
            loop=loop,
            started_unix_s=started_unix_s,
            ended=True,
        )
    )


def _incidents(directory: Path, state: CoreState) -> dict[str, store.Incident]:
    try:
        found = incidents_in_log(directory, state.spec.run, state.spec.created_unix_s)
    except OSError as error:
        raise NothingKeptError(f"the incidents of run {state.spec.run} cannot be read: {error}") from error
    if not state.observes:
        for incident in found:
            incident.state = state_at_end(incident)
    return {incident.id: incident for incident in found}


def _cut_short(kept: store.KeptState, newest: StepRow | None, kept_unix_s: float, seen_unix_s: float) -> None:
    """Turn a run whose end no daemon has kept into one that has ended. ``newest``: its last step that was kept."""
    record = kept.record
    record.phase, record.outcome = store.RUN_PHASE_FAILED, f"cut short after {moment(seen_unix_s)}"
    if seen_unix_s - kept_unix_s > _SAME_MOMENT_S:
        record.outcome += f"; the use of its time is known until {moment(kept_unix_s)}"
    record.time_use.ended_unix_s = kept_unix_s
    if newest is not None:
        record.newest_step = max(record.newest_step, newest.step)
    for node in kept.nodes.values():
        for rank in node.ranks:
            rank.life, rank.stalled_s = store.LIFE_EXITED, 0.0
            if newest is not None and newest.step >= rank.progress.step:
                rank.progress.step, rank.progress.phase = newest.step + 1, common.PHASE_UNSPECIFIED


def _leave(kept: store.KeptState, last: control.RunStatus) -> None:
    """Let a run end as its supervisor has left it."""
    record = kept.record
    record.outcome = last.outcome or record.outcome
    record.newest_step = max(record.newest_step, last.newest_step)
    if last.time_use_s:
        record.time_use.settled_s.clear()
        record.time_use.settled_s.update(last.time_use_s)
        record.time_use.ended_unix_s = last.now_unix_s


def _telemetry(final: Mapping[str, object], newest: StepRow | None, generation: int) -> Telemetry:
    """Return the newest numbers: those of the last status, and of the last step, which may be newer."""
    try:
        status = from_json({name: final[name] for name in (*_NUMBERS, "logged") if name in final}, control.RunStatus())
    except (ParseError, ValueError, TypeError, AttributeError):
        return Telemetry()
    numbers = {name: getattr(status, name) for name in _NUMBERS if status.HasField(name)}
    if newest is not None:
        numbers |= {name: newest.values[name] for name in (*_NUMBERS, *_OF_STEPS) if name in newest.values}
    logged = {one.name: Logged(one.value, one.step, one.rank, generation) for one in status.logged}
    return Telemetry(**numbers, logged=logged)
