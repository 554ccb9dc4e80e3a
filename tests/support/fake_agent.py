"""An agent with two ranks and no processes. It publishes its state, obeys the leader and trains when a test asks."""

import asyncio
import logging

from google.protobuf.message import Message

from holdfast_agent.reports.store_link import StoreLink
from holdfast_base.redis_client import StoreOutage, connect
from holdfast_daemon.clock import Clock
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_FORWARD_BACKWARD, PHASE_IDLE, PHASE_INIT, Progress
from tests.support.coroutines import end
from tests.support.memory_store import MemoryStore
from tests.support.run_keys import KnownKey

RUN, NODE = "run", "node0"
SPEC = store.RunSpec(
    run=RUN,
    nodes=1,
    ranks_per_node=2,
    mode=store.MODE_ACT,
    preset=store.PRESET_PATIENT,
    checkpoint_every=50,
    restarts_without_progress=2,
    instance="i",
)


def _fail(_: str, reason: str) -> None:
    raise AssertionError(reason)


class FakeAgent:
    """An agent that talks to the store as a real one does. Use it with ``async with``."""

    def __init__(self, place: str | MemoryStore) -> None:
        """Use the store at a URL, or one in memory and its clock."""
        self._client = connect(place) if isinstance(place, str) else place.connect()
        self._clock = Clock() if isinstance(place, str) else place.clock
        outage = StoreOutage(logging.getLogger(__name__), str(place), "the agent tries again")
        self.link = StoreLink(self._client, RUN, NODE, outage, KnownKey(RUN))
        self.link.serve(SPEC)
        self.state = store.NodeState(run=RUN, node=NODE, instance=SPEC.instance, ready=True, stopped=True)
        self.commands: list[store.NodeCommand] = []
        self.outcome = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "FakeAgent":
        jobs = (self._publish(), self.link.send_events(), self.link.receive_commands("0", self._obey, _fail))
        self._tasks = [asyncio.create_task(job) for job in jobs]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()
        await self._client.aclose()

    async def die(self) -> None:
        """Stop in the middle of whatever it does."""
        await end(*self._tasks)

    def sealed(self, place: str, message: Message) -> bytes:
        """Return a message as if this agent, or the leader with its next command, wrote it now."""
        return self.link._seal.close(place, message.SerializeToString(), self.link._numbers.next())

    def kinds(self) -> list[str | None]:
        """Kinds of the commands that it got, oldest first."""
        return [command.WhichOneof("kind") for command in self.commands]

    async def _publish(self) -> None:
        while not self.outcome:
            self.state.reported_unix_s = self._clock.now()
            await self.link.publish_state(self.state)
            await asyncio.sleep(0.02)
        await self.link.withdraw()

    async def _obey(self, command: store.NodeCommand, _number: int, _id: str) -> None:
        self.commands.append(command)
        self.state.fence = max(self.state.fence, command.fence)
        match command.WhichOneof("kind"):
            case "start":
                self._start(command.generation, command.start)
            case "stop":
                for rank in self.state.ranks:
                    self.end(rank.rank, signal=9)
                self.state.stopped = True
            case "gather_evidence":
                captured = store.EvidenceCaptured(incident=command.gather_evidence.incident, files=["a"])
                self._emit(store.Event(evidence_captured=captured))
            case "finish":
                self.outcome = command.finish.outcome

    def _start(self, generation: int, start: store.StartGeneration) -> None:
        self.state.generation, self.state.stopped = generation, False
        del self.state.ranks[:]
        for number in range(start.first_rank, start.first_rank + start.ranks):
            progress = Progress(step=start.step + 1, phase=PHASE_INIT)
            self.state.ranks.add(rank=number, pid=100 + number, life=store.LIFE_RUNNING, progress=progress)

    def _emit(self, event: store.Event) -> None:
        event.generation, event.unix_s = self.state.generation, self._clock.now()
        self.link.emit(event)

    def finish_step(self) -> None:
        """Complete the present step on all ranks, and snapshot it."""
        done = self.state.ranks[0].progress.step
        for rank in self.state.ranks:
            rank.snapshots[:] = [done]
            rank.steps_done += 1
            rank.first_step_ended_unix_s = rank.first_step_ended_unix_s or self._clock.now()
            rank.progress.CopyFrom(Progress(step=done + 1, phase=PHASE_FORWARD_BACKWARD))
        summary = store.StepSummary(
            step=done, generation=self.state.generation, loss_sum=3.0, loss_count=2, tokens=10, duration_s=0.1
        )
        self._emit(store.Event(step_summary=summary))

    def end(self, number: int, *, code: int | None = None, signal: int | None = None) -> None:
        """End one rank if it lives; with code 0, after its loop."""
        rank = self.state.ranks[number]
        if rank.life != store.LIFE_EXITED:
            rank.life = store.LIFE_EXITED
            step, phase = rank.progress.step, PHASE_IDLE if code == 0 else rank.progress.phase
            until = step + 1 if code == 0 else 0
            rank.exit.CopyFrom(
                store.RankExit(
                    code=code, signal=signal, step=step, phase=phase, exited_unix_s=self._clock.now(), steps_until=until
                )
            )

    def refuse_checkpoint(self, step: int) -> None:
        """Report a checkpoint that cannot be read: an incident that needs no recovery."""
        unreadable = store.CheckpointUnreadable(step=step, reason="no such file")
        self._emit(store.Event(checkpoint_unreadable=unreadable))

    def fail_checkpoint(self, step: int) -> None:
        """Report a checkpoint that could not be written."""
        failed = store.CheckpointFailed(step=step, reason="no space left")
        self._emit(store.Event(checkpoint_failed=failed))

    def commit_checkpoint(self, step: int) -> None:
        """Report a checkpoint that is committed."""
        committed = store.CheckpointCommitted(step=step)
        self._emit(store.Event(checkpoint_committed=committed))
