"""One rank as its agent sees it."""

import asyncio
import time
from dataclasses import dataclass, field

from holdfast_agent.processes.rank_channel import RankChannel
from holdfast_agent.processes.training_thread import ThreadStatus
from holdfast_proto import black_box
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_INIT, PendingCall, Progress

DYING_PATIENCE_S = 10.0
"""An interpreter takes its time to end: threads are joined, and process groups torn down."""


@dataclass(frozen=True)
class TreeView:
    """What was seen of a rank's process tree since the rank has last made progress."""

    still_s: float = 0.0
    """Seconds in which nothing has moved, as far as that is certain."""
    moved: str = ""
    """What was last seen to move; empty: nothing."""
    traced: bool = False
    """Whether a tracer is attached that is not ours."""
    workers: int = 0
    """Live processes that the rank has started."""


@dataclass
class Rank:
    """A process of the current generation. Mutable: it is folded together from reports."""

    rank: int
    generation: int
    local_rank: int
    pid: int
    start_ticks: int
    life: "store.Life" = store.LIFE_STARTING
    progress: Progress = field(default_factory=lambda: Progress(step=-1, phase=PHASE_INIT))
    stalled_s: float = 0.0
    silent_s: float = 0.0
    process_state: str = ""
    held_for_stacks: bool = False
    """For a moment, by us: what the kernel says of the process meanwhile is none of its own doing."""
    thread: ThreadStatus = field(default_factory=ThreadStatus)
    tree: TreeView = field(default_factory=TreeView)
    moves_total: int = 0
    """Grows whenever the rank makes progress: what was seen of its processes before counts no more."""
    log_start: int = 0
    """Bytes that its log held before it: of an earlier start of the run, or of what an earlier agent saw."""
    store_port: int = 0
    """Port of the store at which its generation meets; 0: not known."""
    pending: list[PendingCall] = field(default_factory=list)
    """Calls that have been pending for long, or that it was in when it ended."""
    exit: store.RankExit | None = None
    finished: bool = False
    """It has said that it means to leave."""
    dying_left_s: float = 0.0
    """How much longer it may take to end after the exception that it has told of, and is not taken to hang."""
    coordinates: dict[str, int] = field(default_factory=dict)
    device: str = ""
    first_step_ended_unix_s: float = 0.0
    steps_done: int = 0
    adopted_from_step: int | None = None
    """The first step of its generation, if an earlier agent started it: what it did since then is not known here."""
    newest_step: int = -1
    """Of the steps reported as finished."""
    channel: RankChannel = field(default_factory=RankChannel)
    """Way to the rank's session."""
    # For /metrics.
    last_progress_unix_s: float = field(default_factory=time.time)
    last_step_s: float = 0.0
    pipeline_bubble: float | None = None
    phase_s: dict[int, float] = field(default_factory=dict)
    memory: session.MemoryStatus = field(default_factory=session.MemoryStatus)
    dropped: int = 0
    snapshots_skipped: int = 0
    snapshots_unchanged_bytes: int = 0
    reporter_cpu_s: float = 0.0
    recorder_failures: int = 0
    recorder_attempts: int = 0
    # For the daemon, in case that a newer one cannot be had.
    snapshots: list[int] = field(default_factory=list)
    last_state: store.RankState | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its exit has not been seen."""
        return self.exit is None

    @property
    def has_left_training(self) -> bool:
        """Whether it has closed its hooks, and its process still runs."""
        return self.finished and self.is_alive

    def command(self, command: session.RankCommand) -> "asyncio.Future[session.CommandAck]":
        """Send a command; return the future of its acknowledgement, cancelled if the rank has no session."""
        command.generation = self.generation
        return self.channel.command(command)

    def pass_time(self, elapsed_s: float) -> None:
        """Age by time in which this agent itself ran. What a rank does once its hooks are closed is not seen."""
        if self.dying_left_s > 0.0:
            self.dying_left_s -= elapsed_s
        elif self.is_alive and not self.finished:
            self.stalled_s += elapsed_s
            self.silent_s += elapsed_s

    def look(self, process_state: str, thread: ThreadStatus) -> None:
        """Take note of what its process does now. A process that was stopped and continues has moved."""
        if self.process_state == "T" and process_state not in ("T", "t", ""):
            self.moves()
        self.process_state, self.thread = process_state, thread

    def moves(self) -> None:
        """End a stall."""
        self.stalled_s = 0.0
        self.tree = TreeView()
        self.moves_total += 1

    def welcome(self, hello: session.Hello) -> None:
        """Take note of a new session."""
        self.life = store.LIFE_RUNNING
        self.silent_s = 0.0
        self.coordinates = dict(hello.coordinates)
        self.store_port = hello.store_port or self.store_port
        self.device = hello.device

    def apply(self, report: session.Report) -> None:
        """Fold in a report; any change of progress ends a stall."""
        self.silent_s = 0.0
        if report.HasField("progress"):
            self._advance(report.progress)
        for step in self.new_steps(report):
            self._finish_step(step)
        if report.HasField("memory"):
            self.memory = report.memory
        self.pending = [*report.pending]
        for call in self.pending:
            call.rank = self.rank
        if report.finished and not self.finished:
            self.finished = True
            self.moves()
        if report.HasField("last_words"):
            self.dying_left_s = DYING_PATIENCE_S
            self.moves()
        self.dropped = report.dropped_total
        self.snapshots_skipped = report.snapshots_skipped_total
        self.snapshots_unchanged_bytes += sum(snapshot.unchanged_bytes for snapshot in report.snapshots)
        self.reporter_cpu_s = report.reporter_cpu_s
        self.recorder_failures = report.recorder_failures_total
        self.recorder_attempts = report.recorder_attempts_total

    def _advance(self, progress: Progress) -> None:
        if self.adopted_from_step is not None:
            self.steps_done = max(0, progress.step - self.adopted_from_step)
            self.adopted_from_step = None
        if progress != self.progress:
            self.progress = progress
            self.moves()
            self.last_progress_unix_s = time.time()

    def new_steps(self, report: session.Report) -> list[session.StepRecord]:
        """Return the steps that an earlier report has not told: after a reconnection one may come twice."""
        return [step for step in report.steps if step.step > self.newest_step]

    def _finish_step(self, step: session.StepRecord) -> None:
        self.steps_done += 1
        self.newest_step = step.step
        self.last_step_s = step.duration_s
        if step.HasField("pipeline_bubble"):
            self.pipeline_bubble = step.pipeline_bubble
        if not self.first_step_ended_unix_s:
            self.first_step_ended_unix_s = step.ended_unix_s
        for phase, seconds in step.phase_s.items():
            self.phase_s[phase] = self.phase_s.get(phase, 0.0) + seconds

    def recall(self, box: black_box.BlackBoxContents | None) -> None:
        """Take over from the black box of an adopted rank that it has left training: it opens no session any more."""
        if box is None or not box.finished:
            return
        self.finished = True
        self.life = store.LIFE_RUNNING
        self.progress = Progress(step=box.step, phase=box.phase)  # type: ignore[arg-type]

    def finish(self, ended: store.RankExit, box: black_box.BlackBoxContents | None) -> None:
        """Note its end, with what its black box still tells."""
        if box is not None:
            ended.step, ended.phase = box.step, box.phase  # type: ignore[assignment]
            ended.last_words = box.last_words
            self.finished |= box.finished
            self.pending = [PendingCall(rank=self.rank, **vars(call)) for call in box.pending]
        else:
            ended.step, ended.phase = self.progress.step, self.progress.phase
        ended.finished = self.finished
        self.exit = ended
        self.life = store.LIFE_EXITED
        self.process_state = ""
        self.thread = ThreadStatus(busy_s=self.thread.busy_s)
        self.tree = TreeView()

    def state(self, snapshots: list[int]) -> store.RankState:
        """Return what the daemon is told."""
        return store.RankState(
            rank=self.rank,
            pid=self.pid,
            life=self.life,
            progress=self.progress,
            stalled_s=self.stalled_s,
            silent_s=self.silent_s,
            process_state=self.process_state,
            exit=self.exit,
            snapshots=snapshots,
            coordinates=self.coordinates,
            device=self.device,
            first_step_ended_unix_s=self.first_step_ended_unix_s,
            steps_done=self.steps_done,
            busy_s=self.thread.busy_s,
            phase_s=self.phase_s,
            memory=self.memory,
            thread_state=self.thread.state,
            thread_syscall=self.thread.syscall,
            pending=self.pending,
            still_s=self.tree.still_s,
            moved=self.tree.moved,
            traced=self.tree.traced,
            workers=self.tree.workers,
            left_training=self.has_left_training,
        )
