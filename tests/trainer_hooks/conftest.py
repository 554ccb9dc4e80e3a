"""Fixtures for the tests of the hooks: an agent's side of the session, and slots for snapshots."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from holdfast_hooks import Hooks
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.snapshots.slot_requests import SlotRequests
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import Slot, allocate
from holdfast_proto.v1 import session_pb2, session_pb2_grpc
from holdfast_proto.v1.session_pb2 import (
    AgentMessage,
    RankCommand,
    RankMessage,
    SlotGrant,
    SnapshotTaken,
    StartFrom,
    Welcome,
)
from tests.support.short_folder import folder

DEADLINE_S = 30.0

__all__ = ["folder"]


class AgentServer(session_pb2_grpc.RankAgentServicer):
    """An agent's server that records the messages of ranks and sends what a test wants."""

    def __init__(self, socket: Path) -> None:
        self.target = f"unix:{socket}"
        self.messages: list[RankMessage] = []
        self.slots: list[Path] = []
        """Slots that every rank is granted after its welcome."""
        self.start_from: StartFrom | None = None
        """State that every rank gets to start from after that."""
        self._changed = threading.Condition()
        self._outgoing: list[SimpleQueue[AgentMessage | None]] = []
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        session_pb2_grpc.add_RankAgentServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(self.target)
        self._server.start()

    def stop(self) -> None:
        """Die without a farewell."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
        for outgoing in self._outgoing:
            outgoing.put(None)
        self._outgoing.clear()

    def Session(self, requests: Iterator[RankMessage], context: Any) -> Iterator[AgentMessage]:  # noqa: N802
        outgoing: SimpleQueue[AgentMessage | None] = SimpleQueue()
        self._record(next(requests))
        self._outgoing.append(outgoing)
        threading.Thread(target=self._read, args=(requests, outgoing), daemon=True).start()
        yield AgentMessage(welcome=Welcome(report_interval_s=0.02))
        if self.slots:
            yield AgentMessage(slot_grant=SlotGrant(paths=[str(path) for path in self.slots]))
        if self.start_from is not None:
            yield AgentMessage(start_from=self.start_from)
        while (message := outgoing.get()) is not None:
            yield message

    def _read(self, requests: Iterator[RankMessage], outgoing: "SimpleQueue[AgentMessage | None]") -> None:
        try:
            for message in requests:
                self._record(message)
        except grpc.RpcError:
            pass
        finally:
            outgoing.put(None)

    def _record(self, message: RankMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def send(self, message: AgentMessage) -> None:
        for outgoing in self._outgoing:
            outgoing.put(message)

    def command(self, command: RankCommand) -> None:
        self.send(AgentMessage(command=command))

    def grant(self, paths: list[Path], **fields: Any) -> None:
        self.send(AgentMessage(slot_grant=SlotGrant(paths=[str(path) for path in paths], **fields)))

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Return what ``condition`` returns as soon as that is true. Checks it after every message."""
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), [str(message) for message in self.messages[-3:]]
            return condition()

    def wait_for_the_end(self) -> list[int]:
        """Wait until a rank says that it has finished, and return the numbers of the reported steps."""
        self.wait_until(lambda: self.of("report") and self.of("report")[-1].finished)
        return [step.step for step in self.steps]

    def of(self, kind: str) -> list[Any]:
        """Return all messages of a kind, oldest first."""
        return [getattr(m, kind) for m in list(self.messages) if m.HasField(kind)]

    @property
    def steps(self) -> list[session_pb2.StepRecord]:
        return [step for report in self.of("report") for step in report.steps]


@pytest.fixture
def agent(folder: Path) -> Iterator[AgentServer]:
    server = AgentServer(folder / "agent.sock")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def launch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RankContext]:
    """A function that makes this process look as if an agent had started it."""

    def set_environment(**fields: Any) -> RankContext:
        values = {"run": "test", "generation": 2, "agent": f"unix:{folder}/agent.sock", **fields}
        context = RankContext(black_box=str(folder / "black-box"), **values)
        for name, value in {**context.to_environment(), "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        return context

    return set_environment


@pytest.fixture
def launched(launch: Callable[..., RankContext]) -> RankContext:
    """Make this process look as if an agent had started it. The value is what the agent has handed over."""
    return launch()


def run_python(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def make_slots(folder: Path) -> Callable[..., list[Path]]:
    def make(count: int = 3, nbytes: int = 1 << 20, prefix: str = "slot") -> list[Path]:
        paths = [folder / f"{prefix}-{index}" for index in range(count)]
        for path in paths:
            allocate(path, nbytes)
        return paths

    return make


def wait_for_slots(hooks: Hooks) -> None:
    assert hooks._sidecar is not None
    while hooks._sidecar._slot_requests.grant is None:
        time.sleep(0.01)


def pinned_steps(paths: list[Path]) -> list[int]:
    """Return the steps of the snapshots from which checkpoints are to be written."""
    found = []
    for path in paths:
        with Slot(path) as slot:
            found += [slot.header.step] if slot.header.persist else []
    return found


class SnapshotBench:
    """Snapshots of a rank that has been granted some slots. A test may grant others."""

    def __init__(
        self,
        state: dict[str, Any],
        slots: Sequence[Path] = (),
        *,
        late: Callable[[SnapshotTaken], None] | None = None,
        rank: int = 0,
        own: OwnStates | None = None,
        **context: Any,
    ) -> None:
        self.context = RankContext(run="test", generation=2, agent="unix:/none", black_box="/none", **context)
        self.slot_requests = SlotRequests(OnceLog())
        self.timeline = Timeline(lambda step, phase, unix_ns: None)
        self.timeline.enter(Phase.FORWARD_BACKWARD)
        self.snapshots = SnapshotTaker(
            state=state,
            context=self.context,
            rank=rank,
            slot_requests=self.slot_requests,
            timeline=self.timeline,
            device=OwnDevice("cpu", {}, may_have_gpus=False),
            once=OnceLog(),
            late=late,
            own=own,
        )
        self.paths = slots
        if slots:
            self.grant(slots)

    def grant(self, paths: Sequence[Path], **fields: Any) -> None:
        self.slot_requests.receive(SlotGrant(paths=[str(path) for path in paths], **fields))

    def end(
        self, step: int, *, commanded: bool = False, replica: bool = False, last: bool = False
    ) -> session_pb2.SnapshotTaken | None:
        return self.snapshots.at_boundary(step, commanded=commanded, replica=replica, last=last)


@pytest.fixture
def bench() -> type[SnapshotBench]:
    return SnapshotBench


@pytest.fixture
def save(make_slots: Callable[..., list[Path]]) -> Callable[[dict[str, Any]], Path]:
    """A function that saves a state as that of rank 3 after step 6, and returns its slot."""

    def save_state(state: dict[str, Any]) -> Path:
        slots = make_slots(1, prefix="saved")
        SnapshotBench(state, slots, rank=3).end(6, last=True)
        return slots[0]

    return save_state
