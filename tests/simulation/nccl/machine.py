"""A machine of ranks that runs a program: one host thread each, streams, communicators, and torch's recorder."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.simulation.nccl import actions
from tests.simulation.nccl.actions import Capture, Collective, Kernel, Messages, NewGroups, Python, Replay, Sync, Wait
from tests.simulation.nccl.communicators import Break, Communicators
from tests.simulation.nccl.device import Communicator, Network, Operation
from tests.simulation.nccl.recorder import Entry, Recorder

CALL_S = 0.00002
"""Seconds that the host needs to enqueue something."""
CAPTURE_S = 0.05
"""Seconds that the capture of a graph takes."""
CURRENT = "current"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How ranks are set up."""

    eager_init: bool = False
    """Communicators are made with the groups (``device_id=``), and messages share the communicator of the group."""
    blocking_wait: bool = False
    launch_limit: int = 1000
    """Kernels that a stream holds before the next launch blocks the host."""
    eager_numel: int = 0
    """Messages up to this size leave the sender without a receiver."""
    records_members: bool = True


@dataclass
class Host:
    """The host thread of a rank."""

    rank: int
    at: int = 0
    """Index of the action that it is in."""
    now_s: float = 0.0
    entered_s: list[float] = field(default_factory=list)
    """When it came to each action."""
    phase: str = ""
    """Where it waits: ``launch``, ``init``, ``groups``, ``sync``, ``python``, ``in_call`` or empty."""
    stage: int = 0
    """Progress within an action that blocks in its middle."""
    held: tuple[Operation, ...] = ()
    entry: Entry | None = None
    """The entry whose call has not returned."""


class Machine:
    """Runs a program until nothing moves. A rank whose host is not at its end by then hangs."""

    def __init__(
        self,
        program: actions.Program,
        settings: Settings,
        *,
        dies_s: dict[int, float] | None = None,
        broken: dict[int, Break] | None = None,
    ) -> None:
        self.program, self.settings = program, settings
        self.network = Network(0.0002, 0.0001, settings.eager_numel)
        self.network.dies_s.update(dies_s or {})
        size = program.world_size
        self.hosts = [Host(rank) for rank in range(size)]
        self.recorders = [
            Recorder(rank, program.groups, settings.blocking_wait, settings.records_members) for rank in range(size)
        ]
        self.communicators = Communicators(program.groups, self.recorders, self.network, broken or {})
        self._tails: list[tuple[Operation, ...]] = [() for _ in range(size)]
        """What the next operation of each current stream waits for."""
        self._queues: list[dict[object, deque[Operation]]] = [{} for _ in range(size)]
        self._works: list[dict[int, Operation]] = [{} for _ in range(size)]
        self._gathering: dict[tuple[int, ...], dict[int, float]] = {}
        for recorder in self.recorders:
            recorder.made_group(0)
        if settings.eager_init:
            self.communicators.make_eagerly(0, 0.0)
        self._acts: dict[type[actions.Action], Callable[[Host, Any], bool]] = {
            Python: self._busy, Kernel: self._kernel, Wait: self._wait, Collective: self._collective, Sync: self._sync,
            Messages: self._messages, Replay: self._replay, Capture: self._capture, NewGroups: self._new_groups,
        }  # fmt: skip

    def run(self) -> "Machine":
        """Let every rank run until it is blocked."""
        woken = self.network.woken
        woken.extend(self._resumer(rank) for rank in range(self.program.world_size))
        while woken:
            woken.popleft()()
        return self

    @property
    def finished(self) -> bool:
        """Whether all hosts are at their end and all devices are idle."""
        return all(host.at == len(self.program.ranks[host.rank]) for host in self.hosts)

    @property
    def end_s(self) -> float:
        """Time of the last thing that happened."""
        times = [host.now_s for host in self.hosts]
        for queues in self._queues:
            for queue in queues.values():
                times.extend(operation.done_s for operation in queue if operation.done_s < inf)
        return max(times)

    def _resumer(self, rank: int) -> Callable[[], None]:
        return lambda: self._resume(rank)

    def _resume(self, rank: int) -> None:
        host, actions = self.hosts[rank], self.program.ranks[rank]
        dies_s = self.network.dies_s.get(rank, inf)
        while host.at < len(actions):
            if host.now_s >= dies_s:
                host.phase = "gone"
                return
            if len(host.entered_s) == host.at:
                host.entered_s.append(host.now_s)
            if not self._act(host, actions[host.at]):
                return
            host.at, host.stage, host.phase = host.at + 1, 0, ""

    def _act(self, host: Host, action: actions.Action) -> bool:
        """Do an action. Return False if the host waits in it; it is called again when something ends."""
        return self._acts[type(action)](host, action)

    def _busy(self, host: Host, action: Python) -> bool:
        if action.seconds == inf:
            host.phase = "python"
            return False
        host.now_s += action.seconds
        return True

    def _until(self, host: Host, operations: tuple[Operation, ...], phase: str) -> bool:
        """Wait on the host until operations are done. Return whether they are."""
        for operation in operations:
            if operation.done_s == inf:
                operation.waiters.append(self._resumer(host.rank))
                host.phase = phase
                return False
            host.now_s = max(host.now_s, operation.done_s)
        return True

    def _has_room(self, host: Host, stream: object) -> bool:
        queue = self._queues[host.rank].setdefault(stream, deque())
        limit = self.settings.launch_limit
        return len(queue) < limit or self._until(host, (queue[-limit],), "launch")

    def _push(self, host: Host, stream: object, operation: Operation, after: tuple[Operation, ...]) -> None:
        queue = self._queues[host.rank].setdefault(stream, deque())
        if stream != CURRENT and queue:
            after = (*after, queue[-1])
        queue.append(operation)
        if stream == CURRENT:
            self._tails[host.rank] = (operation,)
        host.now_s += CALL_S
        if operation.after(after):
            operation.start()

    def _kernel(self, host: Host, action: Kernel | Replay) -> bool:
        if not self._has_room(host, CURRENT):
            return False

        def run(operation: Operation) -> None:
            if action.seconds < inf:
                self.network.finish(operation, operation.start_s + action.seconds)

        self._push(host, CURRENT, Operation(host.rank, host.now_s, run), self._tails[host.rank])
        return True

    def _wait(self, host: Host, action: Wait) -> bool:
        works = self._works[host.rank]
        waited = tuple(works[handle] for handle in action.handles if handle in works)
        if self.settings.blocking_wait and not self._until(host, waited, "sync"):
            return False
        self._tails[host.rank] += waited
        host.now_s += CALL_S / 4
        return True

    def _sync(self, host: Host, action: Sync) -> bool:
        if host.stage == 0:
            host.stage = 1
            host.held = self._tails[host.rank]
            if action.place == "synchronize":
                queues = self._queues[host.rank].values()
                host.held += tuple(queue[-1] for queue in queues if queue)
        return self._until(host, host.held, "sync")

    def _new_groups(self, host: Host, action: NewGroups) -> bool:
        """Wait for all ranks of the world: ``new_group`` ends with a barrier in the store, a split is collective."""
        arrivals = self._gathering.setdefault(action.groups, {})
        arrivals.setdefault(host.rank, host.now_s)
        if len(arrivals) < self.program.world_size:
            host.phase = "groups"
            return False
        ready_s = max(arrivals.values()) + 0.001
        if host.stage == 0 and all(group not in self.recorders[host.rank].ids for group in action.groups):
            for group in action.groups:
                for member in self.program.groups[group].members:
                    if group not in self.recorders[member].ids:
                        self.recorders[member].made_group(group)
                if self.settings.eager_init:
                    self.communicators.make_eagerly(group, ready_s)
            for rank in arrivals:
                if rank != host.rank:
                    self.network.woken.append(self._resumer(rank))
        host.now_s = max(host.now_s, ready_s)
        return True

    def _initialised(self, host: Host, communicator: Communicator) -> bool:
        """Wait on the host until a lazy communicator is made. Return whether it is."""
        was_made = communicator.ready_s is not None
        if not self.communicators.arrive(communicator, host.rank, host.now_s):
            host.phase = "init"
            return False
        if not was_made:
            self.network.woken.extend(self._resumer(rank) for rank in communicator.members if rank != host.rank)
        if host.rank in communicator.arrivals and communicator.ready_s is not None:
            host.now_s = max(host.now_s, communicator.ready_s)
        return True

    def _collective(self, host: Host, action: Collective) -> bool:
        recorder, communicator = self.recorders[host.rank], self.communicators.get(action.group)
        stream: object = CURRENT if action.handle is None else communicator.group
        if host.stage == 0:
            recorder.number_collective(action.group)
            host.stage = 1
        if host.stage == 1:
            if not self._initialised(host, communicator):
                return False
            operation = self.communicators.join(communicator, host.rank, action, host.now_s)
            host.entry = self._note_collective(host, action, operation)
            host.held = (operation,)
            host.stage = 2
        if host.stage == 2:
            if action.stuck_in_call:
                host.phase = "in_call"
                return False
            if not self._has_room(host, stream):
                return False
            operation = host.held[0]
            self._launch(host, stream, operation, communicator)
            if action.handle is not None:
                self._works[host.rank][action.handle] = operation
            elif action.coalesced:
                self._mark_end(host, communicator)
            self._returned(host)
            host.stage = 3
        return not action.blocks_host or self._until(host, host.held, "sync")

    def _mark_end(self, host: Host, communicator: Communicator) -> None:
        """Record the end event of a synchronous coalesced group on the group's own stream, as ``endCoalescing`` does.

        The kernels are on the current stream, so the closing entry is complete as soon as the group's stream is idle.
        """

        def run(operation: Operation) -> None:
            self.network.finish(operation, operation.start_s)

        marker = Operation(host.rank, host.now_s, run)
        assert host.entry is not None
        host.entry.operation = marker
        self._push(host, communicator.group, marker, ())

    def _note_collective(self, host: Host, action: Collective, operation: Operation) -> Entry:
        recorder = self.recorders[host.rank]
        if not action.coalesced:
            return recorder.record(
                action.group, action.op, action.inputs, action.outputs, created_s=host.now_s, operation=operation
            )
        if recorder.records_members:
            for name in action.coalesced:
                recorder.record(action.group, name, action.inputs, action.inputs, created_s=host.now_s, operation=None)
        return recorder.record(action.group, action.op, (), (), created_s=host.now_s, operation=operation, closes=True)

    def _launch(self, host: Host, stream: object, operation: Operation, communicator: Communicator) -> None:
        after = self._tails[host.rank]
        newest = communicator.last.get(host.rank)
        if newest is not None:
            after = (*after, newest)
        communicator.last[host.rank] = operation
        operation.ready_s = max(operation.ready_s, host.now_s)
        self._push(host, stream, operation, after)

    def _returned(self, host: Host) -> None:
        if host.entry is not None:
            host.entry.returned_s = host.now_s
            host.entry = None

    def _messages(self, host: Host, action: Messages) -> bool:
        recorder = self.recorders[host.rank]
        peer = action.parts[0].peer
        own_pair = not action.batched and not self.settings.eager_init
        pair = (min(host.rank, peer), max(host.rank, peer)) if own_pair else None
        communicator = self.communicators.get(action.group, pair)
        stream: object = pair or communicator.group
        if host.stage == 0:
            host.stage = 1
            if own_pair or self.settings.eager_init:
                recorder.number_messages(action.group)
        if host.stage == 1:
            if not self._initialised(host, communicator):
                return False
            if not own_pair and not self.settings.eager_init:
                recorder.number_messages(action.group)
            operation = self.communicators.exchange(communicator, host.rank, action, host.now_s)
            host.entry = self._note_messages(host, action, operation)
            host.held = (operation,)
            host.stage = 2
        if not self._has_room(host, stream):
            return False
        self._launch(host, stream, host.held[0], communicator)
        self._works[host.rank][action.handle] = host.held[0]
        self._returned(host)
        return True

    def _note_messages(self, host: Host, action: Messages, operation: Operation) -> Entry:
        recorder, members = self.recorders[host.rank], self.program.groups[action.group].members
        own = members.index(host.rank)
        entry = None
        for part in action.parts:
            peer = members.index(part.peer)
            name = f"send {own}->{peer}" if part.is_send else f"recv {own}<-{peer}"
            sizes = ((part.numel,),)  # ``pointToPoint`` gives the tensor as input and as output
            held = None if action.batched else operation
            entry = recorder.record(action.group, name, sizes, sizes, created_s=host.now_s, operation=held, is_p2p=True)
        if action.batched:
            entry = recorder.record(
                action.group, "coalesced", (), (), created_s=host.now_s, operation=operation, in_batch=True, closes=True
            )
        assert entry is not None
        return entry

    def _replay(self, host: Host, action: Replay) -> bool:
        if not self._has_room(host, CURRENT):
            return False
        for call in action.calls:
            communicator = self.communicators.get(call.group)
            self._launch(
                host, CURRENT, self.communicators.join(communicator, host.rank, call, host.now_s), communicator
            )
        return self._kernel(host, action)

    def _capture(self, host: Host, action: Capture) -> bool:
        """Count captured calls. Only the fast path of coalesced calls is recorded, and never watched."""
        recorder, noted = self.recorders[host.rank], action.noted
        for call in action.calls:
            recorder.number_collective(call.group)
        recorder.number_collective(noted.group)
        # Its events are part of the graph: their query fails, and ``update_state`` drops the error.
        recorder.record(noted.group, noted.op, noted.inputs, noted.outputs, created_s=host.now_s, operation=None)
        host.now_s += CAPTURE_S
        return True
