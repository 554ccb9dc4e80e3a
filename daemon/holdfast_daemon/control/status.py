"""The status of a run as operators see it, made from the core's state."""

import math
from collections.abc import Mapping
from typing import Any

from holdfast_core.accounting.ledger import time_use
from holdfast_core.checkpointing.replicas import complete_step
from holdfast_core.checkpointing.restore_point import newest_common_snapshot
from holdfast_core.detectors.numbers.silent_corruption import SilentCorruption
from holdfast_core.model import CoreState, committed_steps, present_step, ranks_of
from holdfast_core.naming import incident_number, time_left_s
from holdfast_core.nodes.node_views import nodes_advice, nodes_note
from holdfast_core.reading.attention import (
    is_loss_acknowledged,
    is_training,
    tokens_per_s,
    urgent_incident,
)
from holdfast_daemon.control.listed_ranks import listed_ranks
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1.common_pb2 import PHASE_FORWARD_BACKWARD


def unknown_status(run: str, *, store_up: bool) -> control.RunStatus:
    """Return the status of a run whose state this daemon has not read yet."""
    return control.RunStatus(run=run, store_up=store_up, newest_step=-1, newest_checkpoint=-1, newest_snapshot=-1)


_ALL_RANKS = control.GetStatusRequest()


def status_of(
    state: CoreState, now: float, *, store_up: bool, request: control.GetStatusRequest = _ALL_RANKS
) -> control.RunStatus:
    """Return the status of a run that this daemon leads. ``request`` says which ranks are listed."""
    record, telemetry, spec = state.record, state.telemetry, state.spec
    checkpoints = committed_steps(state)
    ranks = ranks_of(state.members, record.generation)
    listed = listed_ranks(state, ranks, request)
    status = control.RunStatus(
        run=record.run,
        phase=record.phase,
        generation=record.generation,
        newest_step=present_step(state),
        newest_checkpoint=max(checkpoints, default=-1),
        checkpoints=checkpoints,
        newest_snapshot=newest_common_snapshot(state.members, state.world_size),
        newest_replica=complete_step(state),
        nodes_note=nodes_note(state),
        nodes_advice=nodes_advice(state),
        left_out=record.left_out,
        incidents=max(record.incident_count, len(state.incidents)),
        restarts=record.restarts_total,
        loss_spikes=int(state.totals.anomalies.get("spike", 0)),
        leader=True,
        outcome=record.outcome,
        now_unix_s=now,
        store_up=store_up,
        refused=record.refused,
        deadline_s=state.deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 1000),
        loss=telemetry.loss,
        validation_loss=telemetry.validation_loss,
        grad_norm=telemetry.grad_norm,
        learning_rate=telemetry.learning_rate,
        tokens_per_s=tokens_per_s(state),
        pipeline_bubble=telemetry.pipeline_bubble,
        faults=[event.fault_injected for event in state.newest_faults if event.HasField("fault_injected")],
        faults_refused=[event.fault_refused for event in state.newest_faults if event.HasField("fault_refused")],
        ranks=listed.views,
        other_ranks=listed.others,
        rank_counts={kind.word: number for kind, number in listed.counts.items()},
        matching_ranks=listed.matching,
        odd_ranks=listed.odd,
        settings=control.RunSettings(
            mode=spec.mode,
            ranks_per_node=spec.ranks_per_node,
            on_hang=spec.on_hang,
            injection_allowed=spec.injection_allowed,
            checkpoint_directory=spec.checkpoint_directory,
        ),
    )
    status.refused_ranks.extend(node.refused_ranks for node in state.nodes.values() if node.refused_ranks)
    if record.generation and record.resumed_step >= 0:
        status.resumed_step = record.resumed_step
    if planned_steps := max((rank.planned_steps for rank in ranks.values()), default=0):
        status.planned_steps = planned_steps
    usual_step_s = state.deadlines.median_step_s
    left_s = time_left_s(planned_steps, status.newest_step, usual_step_s, is_training=is_training(state))
    if left_s is not None:
        status.time_left_s = left_s
    status.replicas_note = state.detector(SilentCorruption).note
    if record.HasField("failed_checkpoint"):
        status.failed_checkpoint = record.failed_checkpoint
    if record.HasField("left_step"):
        status.left_step = record.left_step
    for name, number in sorted(telemetry.logged.items()):
        status.logged.add(name=name, value=number.value, step=number.step, rank=number.rank)
    status.time_use_s.update(time_use(state, now))
    status.wall_s = math.fsum(status.time_use_s.values())
    counts = record.loss_counts
    status.stopped_by_loss = counts.stopped_by
    if counts.HasField("nonfinite_since"):
        status.nonfinite_since = counts.nonfinite_since
    if counts.HasField("finite_step"):
        status.finite_loss_step = counts.finite_step
    status.loss_is_acknowledged = is_loss_acknowledged(state)
    urgent = urgent_incident(state, now)
    if urgent is not None:
        status.urgent_incident.CopyFrom(urgent)
    if state.incidents:
        status.newest_incident.CopyFrom(state.incidents[max(state.incidents, key=incident_number)])
    return status


def daemon_status(page: Mapping[str, Any], now: float) -> control.DaemonStatus:
    """Return the console's page about Holdfast itself as a message."""
    ticks = page["ticks"]
    status = control.DaemonStatus(
        version=page["version"],
        daemon=page["daemon"],
        uptime_s=page["uptime_s"],
        leader_of=page["leader_of"],
        store_up=page["store"]["up"],
        store_operations=page["store"]["operations"],
        store_failures=page["store"]["failures"],
        ticks=int(ticks["count"]),
        ticks_failed=int(ticks["failed"]),
        tick_p50_s=ticks["p50_s"],
        tick_p99_s=ticks["p99_s"],
        agents=[control.HeardAgent(**agent) for agent in page["agents"]],
        now_unix_s=now,
    )
    for one in page["detectors"]:
        status.detectors.add(name=one["name"], seconds=one["seconds"], failures=int(one["failures"]))
    status.refused.update(page["refused"])
    return status
