"""A run whose core states are made up, and change as those of a real training run do."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from holdfast_core import coordinator
from holdfast_core.model import (
    AcknowledgeRequest,
    CheckpointAnswered,
    CheckpointRequest,
    CoreState,
    FaultAnswered,
    FaultRequest,
    LiveAnswered,
    StacksRequest,
    StopRequest,
)
from holdfast_daemon.leadership.outbox import StoreCounters
from holdfast_daemon.leadership.requests import Requests
from holdfast_daemon.validation.refused_values import Refusals
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

RANKS_PER_NODE = 8
EARLIER_STEPS = 20
"""Steps that the ranks have done before the first one that is shown: deadlines are learned, and nothing compiles."""
_FRAMES = (
    store.StackFrame(function="all_reduce", file="/opt/torch/distributed/distributed_c10d.py", line=2501),
    store.StackFrame(function="train", file="/home/me/train.py", line=88),
    store.StackFrame(function="run", file="/opt/holdfast_hooks/telemetry/link.py", line=40),
)
_PHASES = (common.PHASE_DATA, common.PHASE_FORWARD_BACKWARD, common.PHASE_FORWARD_BACKWARD, common.PHASE_OPTIMIZER)


@dataclass
class SimulatedRun:
    """A run as the console sees one: see :class:`WatchedRun`. ``advance`` lets it train."""

    run_name: str = "llama-7b"
    ranks: int = 8
    step_s: float = 0.5
    seed: int = 0
    now: float = 1_790_000_000.0
    steps_until: int = 0
    """Number after the last step that the ranks say they will do; 0: they do not say it."""
    checkpoint_directory: str = ""
    mode: "store.Mode" = store.MODE_ACT
    store_up: bool = True
    leads: bool = True
    hung: set[int] = field(default_factory=set)
    """Ranks that make no progress. All others then wait for them."""
    dead: set[int] = field(default_factory=set)
    untouchable: set[int] = field(default_factory=set)
    """Ranks of which no stack can be taken."""
    pausing: dict[int, "common.Phase"] = field(default_factory=dict)
    """Rank -> phase that its script has marked, in which it makes no progress. All other ranks then wait."""
    movement: str = "cpu"
    """What the agents see move in the processes of such ranks; "": nothing moves."""

    def __post_init__(self) -> None:
        self.requests = Requests()
        self.refusals = Refusals(self.run_name)
        self.counters = StoreCounters()
        self._random = random.Random(self.seed)
        self._step = 0
        self._in_step_s = 0.0
        self._stalled_s = 0.0
        self.committed: list[int] = []
        self.served: list[object] = []
        """Requests of operators that were answered, the oldest first."""
        self.incidents: dict[str, store.Incident] = {}
        spec = store.RunSpec(
            run=self.run_name,
            nodes=-(-self.ranks // RANKS_PER_NODE),
            ranks_per_node=min(self.ranks, RANKS_PER_NODE),
            command=["python", "train.py"],
            mode=self.mode,
            preset=store.PRESET_FAST,
            created_unix_s=self.now,
            instance="simulated",
            checkpoint_directory=self.checkpoint_directory,
            injection_allowed=True,
        )
        state = coordinator.begin(spec)
        record = store.CoordinatorState(
            run=self.run_name,
            phase=store.RUN_PHASE_RUNNING,
            generation=1,
            newest_step=-1,
            step_at_restart=-1,
            resumed_step=-1,
            phase_since_unix_s=self.now,
            nodes=[f"node{number:04}" for number in range(spec.nodes)],
        )
        record.time_use.since_unix_s = self.now
        deadlines = state.deadlines
        for _ in range(EARLIER_STEPS):
            deadlines = deadlines.observe(self.step_s, {})
        self.state: CoreState | None = replace(state, record=record, deadlines=deadlines)
        self._publish(0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass, and serve the requests of operators."""
        self.now += seconds
        if self.hung or self.dead or self.pausing:
            self._stalled_s += seconds
        else:
            self._stalled_s = 0.0
            self._in_step_s += seconds
            while self._in_step_s >= self.step_s:
                self._in_step_s -= self.step_s
                self._step += 1
        self._publish(seconds)
        self.serve_requests()

    def serve_requests(self) -> None:
        """Answer operators as the core does. Call it on the loop on which they wait."""
        requests = self.requests.take()
        self.served += requests
        for request in requests:
            match request:
                case CheckpointRequest():
                    self.committed.append(self._step + 1)
                    self.requests.answer(CheckpointAnswered(self._step + 1))
                case FaultRequest(fault=fault):
                    self.requests.answer(FaultAnswered(fault))
                case StacksRequest(id=name, ranks=ranks):
                    self.requests.answer(self._stacks(name, ranks))
                case AcknowledgeRequest(incident=name):
                    acknowledged = store.Incident()
                    acknowledged.CopyFrom(self.incidents[name])
                    acknowledged.acknowledged_unix_s = self.now
                    self.incidents[name] = acknowledged
                    self._edit()
                case StopRequest():
                    self.end("stopped by an operator", store.RUN_PHASE_FAILED)
        self.requests.settle(requests, ())

    def _stacks(self, name: str, ranks: tuple[int, ...]) -> LiveAnswered:
        """Answer a request for stacks as the nodes of the ranks do."""
        if gone := self.dead.intersection(ranks):
            return LiveAnswered(name, f"rank {min(gone)}: no such rank is alive: name one of 0")
        taken = store.StacksTaken(request=name, frames=_FRAMES)
        for rank in ranks:
            stacks = taken.ranks.add(rank=rank, pid=10_000 + rank, activity=common.ACTIVITY_COLLECTIVE)
            if rank in self.untouchable:
                stacks.problem = "py-spy may not look into the process: see docs/live-evidence.md"
                continue
            stacks.threads.add(id=90_000 + rank, name="holdfast-link", frames=[2])
            stacks.threads.add(id=10_000 + rank, name="MainThread", active=True, owns_gil=True, frames=[0, 1])
        return LiveAnswered(name, events=(store.Event(node="node0000", unix_s=self.now, stacks_taken=taken),))

    def hang(self, rank: int) -> None:
        """Let a rank stop: the others soon wait for it."""
        self.hung.add(rank)

    def revive(self) -> None:
        """Let all ranks train again."""
        self.hung.clear()
        self.dead.clear()
        self.pausing.clear()

    def kill(self, rank: int) -> None:
        """End a rank by SIGKILL."""
        self.dead.add(rank)

    def judge(
        self,
        rank: int,
        kind: "store.VerdictKind" = store.VERDICT_KIND_HUNG_COLLECTIVE,
        state: "store.IncidentState" = store.INCIDENT_STATE_OPEN,
    ) -> store.Incident:
        """Begin an incident that names a rank, with who waits for it."""
        word = store.VerdictKind.Name(kind).removeprefix("VERDICT_KIND_").lower().replace("_", "-")
        waits = [
            store.WaitEdge(waiter=other, awaited=rank, group="dp", seq=2 * self._step + 1, op="gloo:all_reduce")
            for other in range(min(self.ranks, 64))
            if other != rank
        ]
        verdict = store.Verdict(
            kind=kind,
            culprits=[rank],
            message=f"rank {rank} is stopped in forward_backward of step {self._step}: ranks wait for it",
            confidence_ratio=0.97,
            waits=waits,
            step=self._step,
            phase=common.PHASE_FORWARD_BACKWARD,
            group="dp",
            seq=2 * self._step + 1,
            op="gloo:all_reduce",
            activity=common.ACTIVITY_STOPPED,
        )
        incident = store.Incident(
            id=f"{len(self.incidents) + 1:04}-{word}",
            run=self.run_name,
            generation=self.state.record.generation if self.state is not None else 1,
            verdict=verdict,
            last_progress_unix_s=self.now - 3.0,
            detected_unix_s=self.now,
            reached_step=self._step - 1,
            resumed_step=-1,
            state=state,
            actions=[store.IncidentAction(unix_s=self.now, what="gather evidence from 1 node")],
            evidence=["rank-00000.stack.txt"],
        )
        self.incidents[incident.id] = incident
        if state == store.INCIDENT_STATE_OPEN:
            self._edit(open_incident=incident.id)
        else:
            self._edit()
        return incident

    def turn_nan(self) -> store.Incident:
        """Let the loss be not finite from the present step on, which has an incident."""
        assert self.state is not None
        incident = self.judge(0, store.VERDICT_KIND_NON_FINITE, store.INCIDENT_STATE_NOTED)
        incident.loss_tier = store.LOSS_TIER_NON_FINITE
        del incident.verdict.waits[:]
        incident.verdict.message = f"loss is not finite since step {self._step}"
        incident.verdict.non_finite.good_checkpoint = 20
        self._edit(loss_counts=store.LossCounts(nonfinite_since=self._step))
        return incident

    def begin_generation(self) -> None:
        """Restart the ranks; nodes report the new ones with the next :meth:`advance`."""
        assert self.state is not None
        self._edit(generation=self.state.record.generation + 1)

    def recover(self) -> None:
        """End the open incident: the run trains again."""
        assert self.state is not None
        self.revive()
        for name, incident in list(self.incidents.items()):
            if incident.state == store.INCIDENT_STATE_OPEN:
                recovered = store.Incident()
                recovered.CopyFrom(incident)
                recovered.state = store.INCIDENT_STATE_RECOVERED
                recovered.recovered_unix_s = self.now
                recovered.lost_steps = 1
                recovered.actions.add(unix_s=self.now, what="training again")
                self.incidents[name] = recovered
        self._edit(open_incident="", restarts_total=self.state.record.restarts_total + 1)

    def end(self, outcome: str = "finished", phase: "store.RunPhase" = store.RUN_PHASE_FINISHED) -> None:
        """End the run."""
        self._edit(phase=phase, outcome=outcome)
        assert self.state is not None
        self.state.record.time_use.ended_unix_s = self.now

    def report(self, **telemetry: Any) -> None:
        """Replace numbers that the trainer has reported, such as ``loss=nan``, until the next step."""
        assert self.state is not None
        self.state = replace(self.state, telemetry=replace(self.state.telemetry, **telemetry))

    def _edit(self, **fields: Any) -> None:
        assert self.state is not None
        record = store.CoordinatorState()
        record.CopyFrom(self.state.record)
        for name, value in fields.items():
            if isinstance(value, Message):
                getattr(record, name).CopyFrom(value)
            else:
                setattr(record, name, value)
        self.state = replace(self.state, record=record, incidents=dict(self.incidents))

    def _publish(self, seconds: float) -> None:
        state = self.state
        assert state is not None
        if state.record.outcome:
            return
        done = self._step - 1
        self._edit(newest_step=max(done, state.record.newest_step))
        assert self.state is not None
        used = self.state.record.time_use.settled_s  # of the copy that was just made
        used["detection" if self.hung or self.dead else "productive"] += 0.95 * seconds
        used["checkpoint_stall"] += 0.05 * seconds
        telemetry = state.telemetry
        if done > telemetry.loss_step:
            loss = 2.0 + 6.0 / (1.0 + 0.02 * done) + self._random.gauss(0.0, 0.02)
            telemetry = replace(
                telemetry,
                loss=loss,
                loss_step=done,
                grad_norm=1.0 + self._random.random(),
                learning_rate=3e-4,
                tokens_per_s=8192.0 * self.ranks / self.step_s,
                step_s=self.step_s * (1.0 + 0.02 * self._random.random()),
                mfu=0.4,
            )
        assert self.state is not None
        self.state = replace(self.state, nodes=self._nodes(), telemetry=telemetry)

    def _nodes(self) -> Mapping[str, store.NodeState]:
        assert self.state is not None
        nodes = {}
        for number, name in enumerate(self.state.record.nodes):
            first = number * RANKS_PER_NODE
            node = store.NodeState(
                run=self.run_name,
                node=name,
                generation=self.state.record.generation,
                ready=True,
                reported_unix_s=self.now,
                checkpoints=self.committed,
                instance="simulated",
            )
            for rank in range(first, min(first + RANKS_PER_NODE, self.ranks)):
                node.ranks.append(self._rank(rank))
            nodes[name] = node
        return nodes

    def _rank(self, rank: int) -> store.RankState:
        is_late = bool(self.hung or self.dead or self.pausing)
        at = self._in_step_s / self.step_s + 0.1 * self._random.random()  # each is a little elsewhere in its step
        state = store.RankState(
            rank=rank,
            pid=10_000 + rank,
            life=store.LIFE_EXITED if rank in self.dead else store.LIFE_RUNNING,
            stalled_s=self._stalled_s if is_late else 0.0,
            process_state="T" if rank in self.hung else "S",
            coordinates={"pp": rank % 2, "dp": rank // 4, "tp": rank // 2 % 2} if self.ranks % 4 == 0 else {"dp": rank},
            device=f"cuda:{rank % RANKS_PER_NODE}",
            steps_done=EARLIER_STEPS + self._step,
            planned_steps=self.steps_until,
            snapshots=[max(0, self._step - 1)],
            device_own_s=self._step * self.step_s * (0.8 + 0.01 * (rank * 7 % 13)),
            device_steps=self._step,
            own_time_source=common.OWN_TIME_SOURCE_EVENTS,
        )
        state.memory.allocated_bytes = int((60.0 + 0.5 * (rank % 7)) * 2**30)
        state.memory.limit_bytes = 80 * 2**30
        state.gpu.gpu, state.gpu.uuid = rank % RANKS_PER_NODE, f"GPU-{rank}"
        state.gpu.utilization_samples = 2 * self._step
        state.gpu.utilization_sum = 2 * self._step * (0.9 - 0.02 * (rank % 5))
        call, waits = 2 * self._step + 1, is_late and rank not in self.hung and rank not in self.pausing
        progress = common.Progress(step=self._step, phase=_PHASES[int(at * len(_PHASES)) % len(_PHASES)])
        if is_late:
            progress.phase = self.pausing.get(rank, common.PHASE_FORWARD_BACKWARD)
        progress.groups.add(group="dp", member_runs=[rank, 1, 1], enqueued=call, completed=call - waits)
        state.progress.CopyFrom(progress)
        if waits:
            state.pending.add(rank=rank, group="dp", seq=call, op="gloo:all_reduce")
        if rank in self.pausing:
            state.moved, state.still_s = self.movement, 0.0 if self.movement else self._stalled_s
        if rank in self.dead:
            state.exit.CopyFrom(store.RankExit(signal=9, step=self._step, phase=progress.phase, exited_unix_s=self.now))
        return state
