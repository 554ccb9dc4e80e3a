"""A run that is harmed again and again: inject a case, wait for the verdict, wait until the run trains again."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.detection_ranks.call_log import LoggedRank, log_path, read_log
from benchmarks.detection_ranks.tasks import FIRST_STEP_VARIABLE, FOLDER_VARIABLE, Task, publish
from benchmarks.harmed_runs.fault_cases import DEATHS, DUPLICATE, NOTED, ZERO, Case, ranks_of, ranks_of_stage
from benchmarks.harmed_runs.truth import SYMPTOMS, Judgement, judge
from holdfast_cli.control import ControlClient, ControlError, rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import PresetName
from holdfast_hooks.faults import Fault
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RunStatus

STEPS_LEARNED = 6
"""Steps of a generation before it is harmed. Its deadlines are learned by then."""
PAST_S, PEERS = 12.0, 4
"""If fewer than PEERS ranks do the same work, a slow rank is compared with its own past of PAST_S seconds."""
AHEAD_STEPS = 6
"""Steps from a task's publication until the ranks carry it out."""
PATIENCE_S = 60.0
VERDICT_PATIENCE_S = {"slow": 40.0, "clock-jump": 2.0}
USUAL_VERDICT_PATIENCE_S = 12.0
RESTART_PATIENCE = 0.05
"""Factor of --restart-patience. Only reports are measured, and most faults here never end, so runs restart soon."""
LASTING = ("slow", "bit-flip")
"""Faults whose harm lasts until the generation ends."""

_POLL_S = 0.03
_SLOW_FACTOR = 3.0
_JUMP_S = 3600.0
_ROOT = Path(__file__).resolve().parents[2]

TRAINER_CONFIG = """
[model]
dim = 32
layers = 2
heads = 2
kv_heads = 2
hidden = 64
[data]
source = "stdlib"
sequence = 32
[train]
steps = 1000000
global_batch = 4
validate_every = 0
[optimizer]
warmup_steps = 4
"""


@dataclass(frozen=True)
class Outcome:
    """A case, and how it was judged."""

    case: Case
    verdict: store.Verdict | None
    judgement: Judgement
    latency_s: float | None
    """Seconds from the last progress to the verdict."""
    deadline_s: float
    """Deadline in seconds that was learned when the fault was injected."""
    others: tuple[str, ...]
    """Messages of other incidents of the case."""
    took_s: float
    """Seconds of the whole case, until the run trained again."""
    calls: str
    """Calls that the ranks were in, as they logged them."""


class RunLostError(Exception):
    """The run has ended, or stands still and does not recover."""


class HarmedRun:
    """A LocalRun of one layout. Use it with ``with``."""

    def __init__(
        self,
        layout: str,
        folder: Path,
        *,
        preset: PresetName = PresetName.FAST,
        first_step_s: float = 0.0,
        name: str | None = None,
    ) -> None:
        self.layout = layout
        self.ranks = ranks_of(layout)
        self.run = name or layout.replace(":", "-")
        self._logs = folder / f"{self.run}-calls"
        self._logs.mkdir(parents=True)
        places = filter(None, [str(_ROOT / "benchmarks"), os.environ.get("PYTHONPATH")])
        options = LocalRunOptions(
            run=self.run,
            command=self._command(layout, folder),
            ranks=self.ranks,
            directory=folder,
            snapshot_every=1,
            checkpoint_every=0,
            preset=preset,
            restart_patience=RESTART_PATIENCE,
            faults_allowed=True,
            restarts_without_progress=5,
            environment={
                "PYTHONPATH": os.pathsep.join(places),
                FOLDER_VARIABLE: str(self._logs),
                FIRST_STEP_VARIABLE: str(first_step_s),
            },
        )
        self.local = LocalRun(options)
        self._spent: set[str] = set()
        """Faults of this generation that left harm, or that their detector reports once in a generation."""

    def __enter__(self) -> "HarmedRun":
        self.local.__enter__()
        self._control = ControlClient(self.local.paths.control, self.run, timeout_s=5.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.local.stop()

    def harm(self, case: Case) -> Outcome:
        """Inject a case; return its outcome when the run trains again."""
        began_s = time.monotonic()
        if self._spent.intersection((case.fault, *LASTING)):
            self.restart()
        status = self.until_trained()
        if case.fault == "slow" and ranks_of_stage(case.layout) < PEERS:
            status = self._until_it_has_a_past(status)
        known = status.incidents
        deadline_s = status.deadline_s
        pid = next(rank.pid for rank in status.ranks if rank.rank == case.rank)
        with Deathbed(pid) as deathbed:
            self._inject(case)
            found, logged = self._await_verdict(case, known, status.generation, deathbed)
        latency_s = None if found is None else _latency_s(case, found, logged, deathbed)
        verdict = None if found is None else found.verdict
        judgement = judge(case, verdict, logged)
        if case.fault in NOTED:
            self._spent.add(case.fault)
        if found is None and case.fault != "clock-jump":
            self.restart()
        self._until_over(status.generation, found)
        others = tuple(
            incident.verdict.message
            for incident in self.incidents()[known:]
            if found is None or incident.id != found.id
        )
        return Outcome(
            case=case,
            verdict=verdict,
            judgement=judgement,
            latency_s=latency_s,
            deadline_s=deadline_s,
            others=others,
            took_s=time.monotonic() - began_s,
            calls=_calls(logged),
        )

    def restart(self) -> None:
        """Kill a rank, so that a new generation starts."""
        generation = self._status().generation
        pid = next(iter(rank_pids(self.local.status()).values()))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._spent.clear()
        self._until(lambda status: status.generation > generation)

    def until_trained(self) -> RunStatus:
        """Wait until the run has trained enough steps of its generation to know its deadlines."""
        while True:
            began = self._until(self._is_running)
            first = began.newest_step
            status = self._until(
                lambda status, began=began, first=first: (  # type: ignore[misc]
                    status.generation > began.generation or status.newest_step >= first + STEPS_LEARNED
                )
            )
            if status.generation == began.generation and self._is_running(status):
                return status

    def until_trained_on(self) -> RunStatus:
        """Wait until the run has trained some more steps, in any generation."""
        reached = self._status().newest_step + STEPS_LEARNED
        return self._until(lambda status: self._is_running(status) and status.newest_step >= reached)

    def _until_it_has_a_past(self, status: RunStatus) -> RunStatus:
        """Wait until the generation of ``status`` has trained for PAST_S seconds more."""
        generation, until_s = status.generation, time.monotonic() + PAST_S
        while time.monotonic() < until_s:
            time.sleep(_POLL_S)
            status = self._status()
            if status.generation != generation:
                raise RunLostError(f"run {self.run} was restarted while nothing was wrong: {status.newest_incident}")
        return status

    def assign(self, what: str, *, seconds: float = 0.0, rank: int = -1) -> None:
        """Give ranks something to do in a step soon."""
        publish(self._logs, Task(step=self._status().newest_step + AHEAD_STEPS, what=what, rank=rank, seconds=seconds))

    def inject(self, fault: Fault) -> None:
        """Request a fault of the catalogue."""
        self._control.inject_fault(fault.to_message())

    def incidents(self) -> list[store.Incident]:
        """Return all incidents so far."""
        return self._control.incidents()

    def _command(self, layout: str, folder: Path) -> tuple[str, ...]:
        if not layout.startswith("trainer:"):
            return ("python", "-m", "detection_ranks", layout)
        config = folder / f"{self.run}.toml"
        sizes = {
            "pp2dp2": "dp = 2\ntp = 1\npp = 2\nmicrobatches = 2",
            "dp2tp2": "dp = 2\ntp = 2\npp = 1",
            "dp4": "dp = 4\ntp = 1\npp = 1\ndp_shard = 2\nzero = 2",
        }
        config.write_text(f"{TRAINER_CONFIG}\n[parallel]\n{sizes[layout.removeprefix('trainer:')]}\n")
        return ("python", "-m", "holdfast_trainer", "--config", str(config))

    def _inject(self, case: Case) -> None:
        if case.fault == DUPLICATE:
            self.assign("duplicate", rank=case.rank)
            return
        durations_s = {"clock-jump": _JUMP_S * (1 if case.seed % 2 else -1)}
        self.inject(
            Fault(
                case.fault,
                rank=case.rank,
                phase=case.phase,
                duration_s=durations_s.get(case.fault, 0.0),
                factor=_SLOW_FACTOR if case.fault == "slow" else 0.0,
                seed=case.seed if case.fault in ("nan-gradient", "bit-flip") else 0,
            )
        )

    def _await_verdict(
        self, case: Case, known: int, generation: int, deathbed: "Deathbed"
    ) -> tuple[store.Incident | None, Mapping[int, LoggedRank]]:
        """Return the first incident that is no mere symptom, and what the ranks had logged by then."""
        deadline = time.monotonic() + VERDICT_PATIENCE_S.get(case.fault, USUAL_VERDICT_PATIENCE_S)
        last: store.Incident | None = None
        while time.monotonic() < deadline:
            status = self._status()
            if status.incidents > known:
                logged = self._logged(generation)
                for incident in self.incidents()[known:]:
                    if incident.verdict.kind not in SYMPTOMS.get(case.fault, ()):
                        return incident, logged
                    last = incident
            deathbed.watch(_POLL_S)
        return last, self._logged(generation)

    def _until_over(self, generation: int, found: store.Incident | None) -> None:
        if found is not None and found.state != store.INCIDENT_STATE_NOTED:
            self._until(lambda status: status.generation > generation)
            self._spent.clear()

    def _logged(self, generation: int) -> dict[int, LoggedRank]:
        logs = {rank: read_log(log_path(self._logs, generation, rank)) for rank in range(self.ranks)}
        return {rank: log for rank, log in logs.items() if log is not None}

    def _is_running(self, status: RunStatus) -> bool:
        alive = [rank for rank in status.ranks if rank.life == store.LIFE_RUNNING]
        return status.phase == store.RUN_PHASE_RUNNING and len(alive) == self.ranks

    def _status(self) -> RunStatus:
        while True:
            with contextlib.suppress(ControlError):
                return self.local.status()
            time.sleep(_POLL_S)

    def _until(self, condition: Callable[[RunStatus], bool]) -> RunStatus:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status = self._status()
            if condition(status):
                return status
            if status.phase in (store.RUN_PHASE_FAILED, store.RUN_PHASE_FINISHED):
                raise RunLostError(f"run {self.run} has ended: {status.outcome}")
            time.sleep(_POLL_S)
        raise RunLostError(f"run {self.run} has made no progress within {PATIENCE_S:g} s")


def _calls(logged: Mapping[int, LoggedRank]) -> str:
    return "; ".join(
        f"{rank} in " + ", ".join(f"{call.op} {call.seq} of {call.group} {list(call.members)}" for call in log.calls)
        for rank, log in logged.items()
        if log.calls
    )


class Deathbed:
    """The end of a process, timed to a few milliseconds."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)
        self.ended_unix_s: float | None = None

    def __enter__(self) -> "Deathbed":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def watch(self, for_s: float) -> None:
        """Watch for ``for_s`` seconds. Returns sooner if the process ends."""
        if self.ended_unix_s is not None:
            time.sleep(for_s)
        elif select.select([self._descriptor], [], [], for_s)[0]:
            self.ended_unix_s = time.time()


def _latency_s(
    case: Case, incident: store.Incident, logged: Mapping[int, LoggedRank], deathbed: Deathbed
) -> float | None:
    """Return the seconds to the verdict. They start at the rank's end, or at the last sign of life that it logged."""
    if incident.verdict.kind == store.VERDICT_KIND_DEAD_RANK and case.fault in DEATHS:
        ended = deathbed.ended_unix_s
        return None if ended is None else max(0.0, incident.detected_unix_s - ended)
    marks = {rank: log.marked_unix_s for rank, log in logged.items()}
    if not marks:
        return incident.detected_unix_s - incident.last_progress_unix_s
    return max(0.0, incident.detected_unix_s - marks.get(case.rank, max(marks.values())))


def harmed_one_by_one(layout: str, cases: list[Case], folder: Path) -> Iterator[Outcome]:
    """Yield the outcomes of a layout's cases. One run serves all of them, unless it does not recover.

    Snapshots of the trainer keep a flipped bit, so that each flip there needs a run of its own.
    """
    left = list(cases)
    while left:
        with HarmedRun(layout, folder, name=f"{layout.replace(':', '-')}-{len(left)}") as run:
            try:
                while left:
                    yield run.harm(left[0])
                    if (layout, left.pop(0).fault) == (ZERO, "bit-flip"):
                        break
            except (RunLostError, ControlError, ProcessLookupError) as error:
                yield _missed(left.pop(0), str(error))


def _missed(case: Case, why: str) -> Outcome:
    return Outcome(case, None, judge(case, None, {}), None, 0.0, (f"the run was lost: {why}",), 0.0, "")
