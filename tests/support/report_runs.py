"""Files of runs as a daemon leaves them, for reports."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.rows import CheckpointRow, CountedStep
from holdfast_daemon.incidents.archive import IncidentLog
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World
from tests.support.histories import BEGUN_UNIX_S, STEP_S, counted

HOSTILE = "<script>window.hurt = 1</script>"
TIME_USE_S = {"productive": 80.0, "start_up": 5.0, "restart": 10.0, "checkpoint_stall": 5.0}


def _numbers(step: int, loss: float, step_s: float) -> dict[str, float]:
    numbers = {
        "loss": loss / (1.0 + step / 20.0) + 0.1 * (step % 3),
        "grad_norm": 1.0 + 0.1 * (step % 5),
        "tokens_per_s": 1000.0 / step_s + step % 7,
        "step_s": step_s + 0.001 * (step % 4),
    }
    if step % 20 == 19:
        numbers["validation_loss"] = numbers["loss"] + 0.3
    return numbers


def healthy_steps(count: int, *, loss: float = 4.0, step_s: float = 0.5) -> list[CountedStep]:
    """Return steps whose loss falls."""
    return [counted(step, nonfinite=(), generation=1, **_numbers(step, loss, step_s)) for step in range(count)]


def write_run(
    directory: Path,
    steps: Sequence[CountedStep],
    *,
    run: str = "r",
    command: Sequence[str] = ("python", "train.py", "--lr", "1e-3"),
    incidents: Sequence[store.Incident] = (),
    time_use_s: dict[str, float] | None = None,
    outcome: str = "finished",
    nonfinite_since: int | None = None,
    **spec: Any,
) -> Path:
    """Write the history and the incidents of a run into a daemon's directory, and return it."""
    world = World()
    world.until("starting")
    world.train(1)
    settings = store.RunSpec()
    settings.CopyFrom(world.spec)
    settings.MergeFrom(store.RunSpec(run=run, command=command, created_unix_s=BEGUN_UNIX_S, **spec))
    record = store.CoordinatorState()
    record.CopyFrom(world.state.record)
    record.phase, record.outcome = store.RUN_PHASE_FINISHED, outcome
    if nonfinite_since is not None:
        record.loss_counts.nonfinite_since = nonfinite_since
    state = replace(world.state, spec=settings, record=record)
    checkpoints = [CheckpointRow(1, step, BEGUN_UNIX_S + step * STEP_S, 4000, 1000, 0.2) for step in (10, 20)]
    end_unix_s = BEGUN_UNIX_S + 100.0
    batch = StartRows(list(steps), checkpoints, state, end_unix_s)
    directory.mkdir(exist_ok=True)
    HistoryFile(directory, run).write([("i", batch)])
    account = time_use_s or {}  # a history of an earlier version has none
    _add_to_status(run_files.history(directory, run), time_use_s=account, wall_s=sum(account.values()))
    log = IncidentLog(directory, run)
    for incident in incidents:
        log.append(incident)
    return directory


def hostile_incident(step: int = 12) -> store.Incident:
    """Return an incident whose every text would hurt a page that does not escape it."""
    incident = store.Incident(
        id=f"0001-{HOSTILE}",
        run="r",
        state=store.INCIDENT_STATE_RECOVERED,
        detected_unix_s=BEGUN_UNIX_S + step * STEP_S,
        recovered_unix_s=BEGUN_UNIX_S + step * STEP_S + 2.5,
        last_progress_unix_s=BEGUN_UNIX_S + step * STEP_S - 1.0,
        lost_steps=3,
        resumed_step=9,
        source=store.SOURCE_MEMORY,
    )
    incident.verdict.kind = store.VERDICT_KIND_DEAD_RANK
    incident.verdict.step = step
    incident.verdict.culprits.append(1)
    incident.verdict.node = "gpu-node-17"
    incident.verdict.message = f"rank 1 on gpu-node-17 raised {HOSTILE} with token=verysecret"
    incident.verdict.calls.append(f"</pre>{HOSTILE} in /home/somebody/train.py")
    incident.verdict.death.ends.add(rank=1, said=f"ValueError: {HOSTILE}")
    incident.actions.add(unix_s=incident.detected_unix_s + 0.5, what=f"<img src=x onerror=alert(1)> {HOSTILE}")
    return incident


def _add_to_status(path: Path, **fields: Any) -> None:
    """Add fields to the status that a history keeps."""
    connection = sqlite3.connect(path)
    (text,) = connection.execute("SELECT status FROM finals").fetchone()
    connection.execute("UPDATE finals SET status = ?", (json.dumps({**json.loads(text), **fields}),))
    connection.commit()
    connection.close()
