"""One rank as its agent sees it."""

import asyncio
import time
from dataclasses import dataclass, field

from holdfast_agent.processes.output_file import OutputFile
from holdfast_agent.processes.rank_channel import RankChannel
from holdfast_agent.processes.training_thread import ThreadStatus
from holdfast_proto import black_box
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import (
    OWN_TIME_SOURCE_UNSPECIFIED,
    PHASE_INIT,
    BlockedOn,
    OwnTimeSource,
    PendingCall,
    Progress,
    Recorder,
)

STALLED_AFTER_S = 0.3
"""Time without progress after which a rank stands still: before the daemon's shortest deadline has passed. The agent
then looks at what the rank waits for, and tells the daemon more often."""

DYING_PATIENCE_S = 10.0
"""Time that an interpreter may take to end: it joins threads and destroys process groups."""


@dataclass(frozen=True)
class TreeView:
    """Observations of a rank's process tree since the rank last made progress."""

    still_s: float = 0.0
    """Seconds for which it is certain that nothing has moved."""
    moved: str = ""
    """Kind of the last movement seen; empty: none was seen."""
    traced: bool = False
    """Whether a process that this agent did not start traces the tree."""
    workers: int = 0
    """Number of live processes that the rank has started."""
    sign_of_life: str = ""
    """Newest sign of life, other than a movement; empty: none was seen."""
    sign_age_s: float = 0.0
    """Seconds since then."""
    lost_worker: store.LostWorker | None = None
    """Worker of its data loader that has ended otherwise than normally; None: none is known."""


@dataclass
class Rank:
    """One rank process of the current generation, folded together from its reports and from what the kernel shows."""

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
    """Whether py-spy pauses the process now: the process state then says nothing about the rank."""
    pauses_total: int = 0
    """Number of times that it has done so, which wakes the threads."""
    parent: tuple[int, int] | None = None
    """Pid and start time of the process that has started a rank of another launcher; None: not known."""
    is_killed: bool = False
    """Whether this agent has killed the process because the rank hangs: as it dies, it leaves the state "stopped"."""
    thread: ThreadStatus = field(default_factory=ThreadStatus)
    tree: TreeView = field(default_factory=TreeView)
    moves_total: int = 0
    """Number of times that a stall ended. Observations of the process tree from an earlier stall are void."""
    log_start: int = 0
    """Size of its log in bytes when the rank started: earlier text is not the rank's."""
    output: OutputFile | None = None
    """Its stderr, if another launcher has given it a file."""
    store_port: int = 0
    """Port of its generation's rendezvous store; 0: not known."""
    place: tuple[int, int] | None = None
    """Step and phase in its black box during this stall, which are newer than those of a rank that cannot report;
    None: the box has not been read."""
    blocked_on: BlockedOn | None = None
    """What its training thread waits for during this stall; None: nobody has looked, or it waits for nothing."""
    pending: list[PendingCall] = field(default_factory=list)
    """Calls that have been pending for long, or that were pending when the rank ended."""
    recorders: list[Recorder] = field(default_factory=list)
    """Torch's recorders of its process groups, and the backends without one."""
    worker_socket: str = ""
    """Unix socket of torch's worker server in it; "": there is none."""
    exit: store.RankExit | None = None
    finished: bool = False
    """Whether the rank has closed its hooks."""
    attachment: int = 0
    """How many times the process has attached its hooks; 0: not known."""
    training_thread: int = 0
    """Number of the thread that trains, as the rank has said; 0: the main thread."""
    steps_until: int = 0
    """Number after the last step of its training loop, from its last report; 0: not known."""
    planned_steps: int = 0
    """Number after the last step of its present loop; 0: not known."""
    is_identified: bool = False
    """Whether the rank and this agent see the same start time of its process. Only such a process that another
    launcher has started may be ended: the number alone may be that of a process in another container."""
    dying_left_s: float = 0.0
    """Seconds that the rank may still take to end after it has reported an exception, without counting as stalled."""
    awaits_start: bool = False
    """Whether it waits, or will wait, for the state to start from."""
    restarts_left: int | None = None
    """Restarts that its launcher has left; None: the launcher does not say."""
    coordinates: dict[str, int] = field(default_factory=dict)
    replica_ranks: int = 0
    """Number of ranks of one data-parallel replica; 0: the rank does not say."""
    device: str = ""
    """torch's name of its device; empty: not known yet."""
    device_uuid: str = ""
    """UUID of its GPU, once the rank uses it."""
    first_step_ended_unix_s: float = 0.0
    steps_done: int = 0
    launched_world_size: int = 0
    """Size of the world that a launcher within the rank's command made; 0: it belongs to the world of this run."""
    adopted_from_step: int | None = None
    """First step of its generation, if an earlier agent started the rank; None after its first report to this one."""
    newest_step: int = -1
    """Newest step reported as finished; -1: none."""
    channel: RankChannel = field(default_factory=RankChannel)
    """Way to the rank's session."""
    began_unix_s: float = field(default_factory=time.time)
    """Time since which this agent knows the process. Errors of its GPU before that are not its own."""
    # For /metrics.
    last_progress_unix_s: float = field(default_factory=time.time)
    last_step_s: float = 0.0
    own_wait_s: float = 0.0
    """Seconds in which the training thread slept while it computed a step and no call with other ranks was pending."""
    call_wait_s: float = 0.0
    """The same, while such a call was pending."""
    device_own_s: float = 0.0
    """Seconds in which its GPU worked and did not wait for other ranks, over ``device_steps`` steps."""
    device_steps: int = 0
    own_time_source: "OwnTimeSource" = OWN_TIME_SOURCE_UNSPECIFIED
    """How the time that it needs for itself is measured."""
    own_time_reason: str = ""
    """Why that time is not measured, if it is not."""
    pipeline_bubble: float | None = None
    phase_s: dict[int, float] = field(default_factory=dict)
    """Phase number -> seconds spent in it by the finished steps."""
    outside_s: dict[int, float] = field(default_factory=dict)
    """Phase number -> seconds spent in it outside of steps."""
    memory: session.MemoryStatus = field(default_factory=session.MemoryStatus)
    dropped: int = 0
    snapshots_skipped: int = 0
    snapshots_unchanged_bytes: int = 0
    reporter_cpu_s: float = 0.0
    recorder_failures: int = 0
    recorder_attempts: int = 0
    # The newest values, for the daemon to use if reading newer ones fails.
    snapshots: list[int] = field(default_factory=list)
    last_state: store.RankState | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the agent has not noted its exit."""
        return self.exit is None

    @property
    def trains(self) -> bool:
        """Whether it makes steps: it has finished one, progress is recent, and no signal has stopped it."""
        runs = self.is_alive and not self.finished and self.process_state not in ("T", "t", "Z", "X")
        return runs and bool(self.steps_done) and self.stalled_s < STALLED_AFTER_S

    @property
    def has_left_training(self) -> bool:
        """Whether the rank has closed its hooks and its process still runs."""
        return self.finished and self.is_alive

    def command(self, command: session.RankCommand) -> "asyncio.Future[session.CommandAck]":
        """Send a command; return the future of its acknowledgement, cancelled if the rank has no session."""
        command.generation = self.generation
        return self.channel.command(command)

    def pass_time(self, elapsed_s: float) -> None:
        """Add time, in which this agent itself ran, to the rank's stall.

        A rank that has closed its hooks reports nothing, so no stall of it is counted.
        """
        if self.dying_left_s > 0.0:
            self.dying_left_s -= elapsed_s
        elif self.is_alive and not self.finished:
            self.stalled_s += elapsed_s
            self.silent_s += elapsed_s

    def look(self, process_state: str, thread: ThreadStatus) -> None:
        """Note the state of its process. A process that was stopped and continues has moved."""
        if self.process_state == "T" and process_state not in ("T", "t", "Z", "") and not self.is_killed:
            self.moves()
        if not thread.state:  # the thread that trains has ended before its process
            thread = ThreadStatus(busy_s=self.thread.busy_s)
        self.process_state, self.thread = process_state, thread

    def moves(self) -> None:
        """End a stall."""
        self.stalled_s = 0.0
        self.tree = TreeView()
        self.place = self.blocked_on = None
        self.moves_total += 1

    def see_place(self, step: int, phase: int, changed_unix_s: float) -> None:
        """Note the step and the phase in its black box, and when it entered them; 0: not known.

        If they change while it reports nothing, it has moved.
        """
        place = step, phase
        if place != (self.progress.step, self.progress.phase):
            self.last_progress_unix_s = max(self.last_progress_unix_s, changed_unix_s)
        if self.place is not None and self.place != place:
            self.moves()
        self.place = place

    @property
    def newest_progress(self) -> Progress:
        """Progress as reported, with the step and the phase of the black box if that was read in this stall."""
        if self.place is None:
            return self.progress
        newest = Progress()
        newest.CopyFrom(self.progress)
        newest.step, newest.phase = self.place  # type: ignore[assignment]
        return newest

    @property
    def is_fresh(self) -> bool:
        """Whether this agent has started the rank, and has not heard from it yet."""
        return self.life == store.LIFE_STARTING and self.adopted_from_step is None

    @property
    def thread_id(self) -> int:
        """Number of the thread that trains. Some frameworks keep the main thread for themselves."""
        return self.training_thread or self.pid

    def welcome(self, hello: session.Hello) -> None:
        """Note a new session."""
        self.life = store.LIFE_RUNNING
        self.silent_s = 0.0
        if hello.attachment > self.attachment > 0:
            # It has closed its hooks and attached again: what it counts now is new, and it may train for long.
            self.finished, self.newest_step = False, -1
        self.attachment = hello.attachment
        self.training_thread = hello.training_thread
        self.awaits_start = hello.awaits_start
        self.restarts_left = hello.restarts_left if hello.HasField("restarts_left") else None
        self.coordinates = dict(hello.coordinates)
        self.replica_ranks = hello.replica_ranks
        self.store_port = hello.store_port or self.store_port
        self.device = hello.device or self.device

    def apply(self, report: session.Report, now_unix_s: float) -> None:
        """Fold in a report. Any change of progress ends a stall."""
        self.silent_s = 0.0
        if report.HasField("progress"):
            self._advance(report.progress, now_unix_s)
        for step in self.new_steps(report):
            self._finish_step(step)
        if report.HasField("memory"):
            self.memory = report.memory
        self.pending = [*report.pending]
        for call in self.pending:
            call.rank = self.rank
        self.recorders, self.worker_socket = [*report.recorders], report.worker_socket
        if report.finished and not self.finished:
            self.finished = True
            self.moves()
        if report.HasField("last_words"):
            self.dying_left_s = DYING_PATIENCE_S
            self.moves()
        self.training_thread = report.training_thread or self.training_thread
        self.steps_until = report.steps_until or self.steps_until
        self.planned_steps = report.planned_steps or self.planned_steps
        self.dropped = report.dropped_total
        self.snapshots_skipped = report.snapshots_skipped_total
        self.snapshots_unchanged_bytes += sum(snapshot.unchanged_bytes for snapshot in report.snapshots)
        self.reporter_cpu_s = report.reporter_cpu_s
        self.outside_s = dict(report.outside_s)
        self.device = report.device or self.device
        self.device_uuid = report.device_uuid
        self.own_wait_s = max(self.own_wait_s, report.own_wait_s)
        self.call_wait_s = max(self.call_wait_s, report.call_wait_s)
        if report.device_steps >= self.device_steps:  # a report that is late must not turn the pair back
            self.device_own_s, self.device_steps = report.device_own_s, report.device_steps
        self.own_time_source, self.own_time_reason = report.own_time_source, report.own_time_reason
        self.recorder_failures = report.recorder_failures_total
        self.recorder_attempts = report.recorder_attempts_total

    def _advance(self, progress: Progress, now_unix_s: float) -> None:
        if self.adopted_from_step is not None:
            self.steps_done = max(0, progress.step - self.adopted_from_step)
            self.adopted_from_step = None
        if progress != self.progress:
            self.progress = progress
            self.moves()
            self.last_progress_unix_s = now_unix_s

    def new_steps(self, report: session.Report) -> list[session.StepRecord]:
        """Return the steps that no earlier report contained: after a reconnection a step may arrive twice."""
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
        """Learn from an adopted rank's black box whether it has left training: such a rank opens no session again."""
        if box is None or not box.finished:
            return
        self.finished = True
        self.life = store.LIFE_RUNNING
        self.progress = Progress(step=box.step, phase=box.phase)  # type: ignore[arg-type]

    def finish(self, ended: store.RankExit, box: black_box.BlackBoxContents | None) -> None:
        """Note its end, with the contents of its black box if it has one."""
        if box is not None:
            ended.step, ended.phase = box.step, box.phase  # type: ignore[assignment]
            ended.last_words = box.last_words
            self.finished |= box.finished
            self.pending = [PendingCall(rank=self.rank, **vars(call)) for call in box.pending]
        else:
            progress = self.newest_progress
            ended.step, ended.phase = progress.step, progress.phase
            ended.never_attached = self.life == store.LIFE_STARTING
        ended.finished = self.finished
        ended.steps_until = self.steps_until
        self.exit = ended
        self.life = store.LIFE_EXITED
        self.process_state = ""
        self.thread = ThreadStatus(busy_s=self.thread.busy_s)
        self.tree = TreeView()
        self.place = self.blocked_on = None

    def state(self, snapshots: list[int]) -> store.RankState:
        """Return the rank's part of the node's state."""
        return store.RankState(
            rank=self.rank,
            pid=self.pid,
            life=self.life,
            progress=self.newest_progress,
            stalled_s=self.stalled_s,
            silent_s=self.silent_s,
            process_state=self.process_state,
            exit=self.exit,
            snapshots=snapshots,
            coordinates=self.coordinates,
            replica_ranks=self.replica_ranks,
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
            dying=self.dying_left_s > 0.0,
            sign_of_life=self.tree.sign_of_life,
            sign_age_s=self.tree.sign_age_s,
            lost_worker=self.tree.lost_worker,
            left_training=self.has_left_training,
            blocked_on=self.blocked_on,
            launched_world_size=self.launched_world_size,
            own_wait_s=self.own_wait_s,
            device_own_s=self.device_own_s,
            device_steps=self.device_steps,
            own_time_source=self.own_time_source,
            own_time_reason=self.own_time_reason,
            recorders=self.recorders,
            planned_steps=self.planned_steps,
            awaits_start=self.awaits_start and self.is_alive,
            start_ticks=self.start_ticks if self.is_identified else 0,
        )
