"""The nodes of a simulated run: their states at a moment of training, and while all ranks wait for one."""

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.simulation.machine import Machine
from tests.simulation.programs import Layout, training

RUN, INSTANCE = "scale", "simulated"
RANKS_PER_NODE = 8
EARLIER_STEPS = 50
"""Steps that the ranks have done before: none is judged as a first one."""
LAYOUTS = {
    1_000: Layout(data=25, tensor=8, pipeline=5, experts=5, microbatches=8),
    4_000: Layout(data=50, tensor=8, pipeline=10, experts=5, microbatches=8),
    10_000: Layout(data=125, tensor=8, pipeline=10, experts=5, microbatches=8),
    100_000: Layout(data=1250, tensor=8, pipeline=10, experts=5, microbatches=4),
}
_PHASES = (common.PHASE_DATA, common.PHASE_FORWARD_BACKWARD, common.PHASE_FORWARD_BACKWARD, common.PHASE_OPTIMIZER)
_Counts = list[tuple[int, int]]


class TrainingNodes:
    """All nodes of a run whose steps take ``step_s`` simulated seconds."""

    def __init__(self, layout: Layout, step_s: float, seed: int) -> None:
        self._layout, self._step_s = layout, step_s
        self._random = random.Random(seed)
        self._programs = training(layout, steps=1)
        healthy = Machine(self._programs, {}).run()
        self._groups: dict[int, list[int]] = {rank: [] for rank in range(layout.world_size)}
        for index, group in enumerate(self._programs.groups):
            for rank in group.members:
                self._groups[rank].append(index)
        self.nodes: dict[str, store.NodeState] = {}
        for rank, state in healthy.states(0.0).items():
            name = f"node{rank // RANKS_PER_NODE:05}"
            if name not in self.nodes:
                self.nodes[name] = self._node(name)
            self._complete(state)
            self.nodes[name].ranks.append(state)
        self._step_counts = {rank.rank: self._counts(healthy, rank) for rank in self._ranks()}
        self._hung: Mapping[int, _Counts] = {}
        self._moved_s: list[float] = []
        self.culprit = -1
        self._hung_s = 0.0

    def _node(self, name: str) -> store.NodeState:
        return store.NodeState(
            run=RUN, node=name, instance=INSTANCE, generation=1, ready=True, agent_pid=100, incarnation=1
        )

    def _complete(self, state: store.RankState) -> None:
        """Add what a real agent reports, and the machine does not know."""
        rank, layout = state.rank, self._layout
        stage, rest = divmod(rank, layout.data * layout.tensor)
        state.pid, state.first_step_ended_unix_s = 10_000 + rank, time.time() - 1000.0
        state.coordinates.update({"pp": stage, "dp": rest // layout.tensor, "tp": rest % layout.tensor})
        state.memory.allocated_bytes, state.memory.limit_bytes = (60 + rank % 7) * 2**30, 80 * 2**30
        state.thread_syscall, state.workers, state.device = -1, 2, f"cuda:{rank % RANKS_PER_NODE}"
        state.recorders.add(source=common.RECORDER_SOURCE_GENERIC, backend="gloo")
        state.gpu.gpu, state.gpu.uuid = rank % RANKS_PER_NODE, f"GPU-{self._random.getrandbits(128):032x}"

    def _ranks(self) -> Iterator[store.RankState]:
        for node in self.nodes.values():
            yield from node.ranks

    def _counts(self, machine: Machine, state: store.RankState) -> _Counts:
        """Return posted and completed calls of a rank, in the order of its groups and channels."""
        rank = state.rank
        entered = [(machine.entered[rank, group], machine.completed[group]) for group in self._groups[rank]]
        counts = [(posted, min(posted, done)) for posted, done in entered]
        for channel in state.progress.channels:
            if channel.direction == common.DIRECTION_SEND:
                counts.append((machine.sent[rank, channel.peer],) * 2)
            else:
                posted = machine.posted[channel.peer, rank]
                counts.append((posted, min(posted, machine.sent[channel.peer, rank])))
        return counts

    def hang(self, now_s: float) -> None:
        """Stop one rank in the present step: all others run on until they wait for it."""
        programs = self._programs
        self.culprit = self._random.randrange(self._layout.world_size)
        stop_at = self._random.randrange(4, len(programs.calls[self.culprit]) - 2)
        machine = Machine(programs, {self.culprit: stop_at}).run()
        self._hung = {state.rank: self._counts(machine, state) for state in self._ranks()}
        newest_s = max(machine.moved_s)
        self._moved_s = [moved_s - newest_s for moved_s in machine.moved_s]
        self._hung_s = now_s

    def go_on(self) -> None:
        """End the hang."""
        self._hung, self.culprit = {}, -1

    def state_at(self, node: str, trained_s: float, now_s: float) -> store.NodeState:
        """Return a node's state. ``trained_s``: seconds without those of hangs; ``now_s``: with them."""
        state = self.nodes[node]
        state.reported_unix_s = time.time()
        steps, share = divmod(trained_s / self._step_s, 1.0)
        for rank in state.ranks:
            self._update(rank, int(steps), share, now_s - self._hung_s)
        return state

    def _update(self, rank: store.RankState, steps: int, share: float, hung_s: float) -> None:
        done, hung = EARLIER_STEPS + steps, self._hung.get(rank.rank)
        per_step = self._step_counts[rank.rank]
        now = hung or [(int(share * posted), int(share * posted)) for posted, _ in per_step]
        progress = rank.progress
        calls: list[Any] = [*progress.groups, *progress.channels]
        for call, (every, _), (posted, completed) in zip(calls, per_step, now, strict=True):
            call.enqueued, call.completed = done * every + posted, done * every + completed
        progress.step, rank.steps_done, rank.snapshots[:] = done, done, [done - 1]
        progress.phase = _PHASES[1] if hung else _PHASES[int(share * len(_PHASES))]
        rank.silent_s = 0.05
        rank.thread_state = "R" if rank.rank == self.culprit else "S"
        if hung:
            rank.stalled_s = hung_s - self._moved_s[rank.rank]
        else:
            rank.stalled_s = 0.01
            rank.busy_s = (done + share) * self._step_s * self._random.uniform(0.79, 0.81)
            rank.own_wait_s = 0.01 * rank.busy_s
            rank.gpu.utilization_samples = 10 * done
            rank.gpu.utilization_sum = rank.gpu.utilization_samples * self._random.random()
            for phase in _PHASES:
                rank.phase_s[phase] = done * self._step_s * self._random.uniform(0.32, 0.34)

    def summary(self, node: str, steps: int) -> store.Event:
        """Return what an agent sends at the end of a step."""
        summary = store.StepSummary(
            step=EARLIER_STEPS + steps,
            generation=1,
            loss_sum=2.0 * RANKS_PER_NODE,
            loss_count=RANKS_PER_NODE,
            grad_norm=1.0,
            learning_rate=3e-4,
            tokens=8192 * RANKS_PER_NODE,
            duration_s=self._step_s,
            ended_unix_s=time.time(),
            phase_s=dict.fromkeys(_PHASES, self._step_s / 3),
        )
        return store.Event(node=node, generation=1, step_summary=summary)
