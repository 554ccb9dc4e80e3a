"""Puts together the parts of the hooks that run when an agent has started the rank."""

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from holdfast_base.processes import start_ticks
from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.device_time.device_time import DeviceTime
from holdfast_hooks.hook_errors import ConfigurationError, OnceLog
from holdfast_hooks.identity import Identity, world_of_torch
from holdfast_hooks.phases import Phase
from holdfast_hooks.profiling.step_profiler import StepProfiler
from holdfast_hooks.progress.device_poll import DevicePoll
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_hooks.progress.progress_poll import ProgressPoll
from holdfast_hooks.replay.step_replay import StepReplay
from holdfast_hooks.replicas.replica_check import ReplicaCheck
from holdfast_hooks.restore.awaited_start import AwaitedStart
from holdfast_hooks.session.own_worker_server import WorkerServer
from holdfast_hooks.session.rank_commands import RankCommands, StepCommands
from holdfast_hooks.session.reporter import Reporter
from holdfast_hooks.snapshots.host_copies import end_copy_threads
from holdfast_hooks.snapshots.slot_requests import SlotRequests
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.state.encoding import Stateful
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.telemetry.bad_gradients import BadGradients
from holdfast_hooks.telemetry.gradient_origin import GradientWatch
from holdfast_hooks.telemetry.logged_numbers import LoggedNumbers
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_hooks.telemetry.report_builder import Backlog, Sources
from holdfast_hooks.telemetry.timeline import StepSample, Timeline
from holdfast_hooks.updates import usual_norm
from holdfast_hooks.updates.update_check import UpdateCheck
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.limits import LARGEST_COUNT, PROTOCOL
from holdfast_proto.rank_context import RankContext, pid_namespace
from holdfast_proto.v1.session_pb2 import Hello, SnapshotTaken

if TYPE_CHECKING:
    import torch

    from holdfast_hooks.faults.requested_faults import RequestedFaults

_Result = TypeVar("_Result")

_attachments = itertools.count(1)
"""Numbers the sessions of this process. A later one shows the agent that a rank which had left is back."""
BACKLOG_STEPS = 4096
BACKLOG_SNAPSHOTS = 64


class Sidecar:
    """Owns a rank's reporter, progress record, snapshots and checks, and runs them at the end of each step.

    Only the training thread calls it.
    """

    def __init__(
        self,
        *,
        context: RankContext,
        identity: Identity,
        state: Mapping[str, Stateful],
        coordinates: Mapping[str, int],
        device: OwnDevice,
        timeline: Timeline,
        black_box: BlackBoxWriter | None,
        once: OnceLog,
        check_replicas: bool,
        replica_ranks: int,
        updates: UpdateCheck,
        own_states: OwnStates | None = None,
    ) -> None:
        self.rank = identity.rank
        self.own_states = own_states or {}
        """Parts of the hooks that are saved and restored with the state."""
        self.start_state = AwaitedStart(context, identity.rank, once)
        self._world_size = identity.world_size
        self._timeline = timeline
        self._device = device
        self._steps: Backlog[StepSample] = Backlog(BACKLOG_STEPS)
        self._taken: Backlog[SnapshotTaken] = Backlog(BACKLOG_SNAPSHOTS)
        self._landed: Backlog[SnapshotTaken] = Backlog(BACKLOG_SNAPSHOTS)
        self._snapshot_commands = StepCommands(timeline)
        self._replica_commands = StepCommands(timeline)
        self._stop_commands = StepCommands(timeline)
        self._slot_requests = SlotRequests(once)
        self._snapshots = (
            SnapshotTaker(
                state=state,
                context=context,
                rank=identity.rank,
                slot_requests=self._slot_requests,
                timeline=timeline,
                once=once,
                device=device,
                coordinates=coordinates,
                own=self.own_states,
                late=self._landed.append,  # from one thread at a time: a landing starts after the one before has ended
            )
            if state and context.saves
            else None
        )
        own = {usual_norm.KEY: updates.norms}
        self._replay = StepReplay(state=state, own=own, snapshots=self._snapshots, timeline=timeline, once=once)
        self._once = once
        self._replicas = ReplicaCheck(state, once) if check_replicas else None
        self._gradients: GradientWatch | None = None
        self._bad_gradients = BadGradients(state, once) if state else None
        self._has_checks = self._replicas is not None
        self._faults = self._plug_in_faults(state) if context.faults_allowed else None
        self._profiler = StepProfiler(identity.rank, once)
        self._finished = False
        self._point_to_point = PointToPointRecord(black_box, once)
        self._device_time = DeviceTime(timeline, once)
        self._snapshot_every = context.snapshot_every
        self._worker_server = WorkerServer(context.agent, once)
        progress = ProgressPoll(black_box, self._point_to_point, once)
        devices = DevicePoll(
            place=lambda: (timeline.step, timeline.phase),
            opening=self._point_to_point.opening,
            once=once,
            has_gloo=lambda: progress.has_groups,
        )
        self._logged = LoggedNumbers(once)
        self._sources = Sources(
            timeline=timeline,
            progress=progress,
            devices=devices,
            worker_server=self._worker_server,
            point_to_point=self._point_to_point,
            device=device,
            on_wanted_device=self._note_checks_next,
            steps=self._steps,
            logged=self._logged,
            snapshots=(self._taken, self._landed),
            device_time=self._device_time,
            on_bad_number=self._on_bad_number,
        )
        self._reporter = Reporter(
            target=context.agent,
            hello=_hello(context, identity, coordinates, device, replica_ranks),
            sources=self._sources,
            commands=RankCommands(
                generation=context.generation,
                rank=identity.rank,
                snapshots=self._snapshot_commands,
                replicas=self._replica_commands,
                stops=self._stop_commands,
                refusal=self._why_no_snapshots,
                spikes=updates.receive,
                faults=self._faults,
                recorders=devices.recorders,
                profiler=self._profiler,
            ),
            slot_requests=self._slot_requests,
            profiler=self._profiler,
            start=self.start_state,
            once=once,
        )

    def start(self) -> None:
        """Record point-to-point calls from now on, and start to report."""
        self._point_to_point.install()
        self._reporter.start()

    def before_first_step(self) -> None:
        """Check that the state can be saved. Raises ConfigurationError if it cannot be encoded."""
        self.follow_thread()
        # Again, in case torch.distributed was imported after attach().
        self._point_to_point.install()
        world = world_of_torch()
        if self._world_size == 1 and world is not None and world[1] > 1:
            what = f"this process attached as rank 0 of 1, but it is rank {world[0]} of {world[1]} in torch"
            self._once.warn(what, "call attach() after init_process_group(), or set RANK and WORLD_SIZE")
        self._look_at_device(self._device.look_at_state)
        GATE.install(self._once)
        self._device_time.install()
        if self._snapshots is None:
            return
        try:
            self._snapshots.capture()
        except TypeError as error:
            raise ConfigurationError(str(error)) from None

    def starting_context(self) -> RankContext:
        """Return the context with the state to start from. While the agent must name it, this waits in phase INIT.

        Raises ConfigurationError if the rank cannot start: see :meth:`AwaitedStart.wait`.
        """
        if self.start_state.known is None:
            self._timeline.enter(Phase.INIT)
        context = self.start_state.wait()
        if self._snapshots is not None:
            self._snapshots.context = context
        return context

    def follow_thread(self) -> None:
        """Note that the calling thread trains. Some frameworks attach in one thread and train in another."""
        self._sources.training_thread = threading.get_native_id()

    def end_step(self, step: int, until: int, *, left: bool = False) -> bool:
        """Close ``step`` of a loop that ends before ``until``; return whether to leave the loop here.

        ``left``: the script has left the loop in this step, which is to be the last checkpoint.
        """
        # First the boundary, then the commands: StepCommands relies on this order.
        self._timeline.boundary = step
        # A look into the dict is cheaper than a call, and almost always it is empty.
        stop = bool(self._stop_commands.due) and self._stop_commands.take(step)
        commanded = bool(self._snapshot_commands.due) and self._snapshot_commands.take(step)
        replica = bool(self._replica_commands.due) and self._replica_commands.take(step)
        if self._snapshots is not None:
            is_last = stop or left or step + 1 == until
            taken = self._snapshots.at_boundary(step, commanded=commanded, replica=replica, last=is_last)
            self._sources.snapshots_skipped_total = self._snapshots.skipped_total
            if taken is not None:
                self._taken.append(taken)
        if self._has_checks:
            self._note_checks(step)
        sample = self._timeline.end()
        if self._faults is not None:
            self._faults.step_ended(sample[3], until)
        self._steps.append(sample)
        if self._profiler.due:  # after the end of the step: to start and to end a profile takes time
            self._profiler.at_boundary(step, is_last=stop or step + 1 == until)
        return stop

    def save_ended(self, step: int) -> None:
        """Take the last checkpoint of a loop that has ended ``step`` already.

        If a snapshot of that step was due, it is there, and the coordinator has it written.
        """
        if self._snapshots is not None and (not self._snapshot_every or (step + 1) % self._snapshot_every):
            taken = self._snapshots.at_boundary(step, commanded=True, last=True)
            if taken is not None:
                self._taken.append(taken)

    def steps_until(self, until: int) -> None:
        """Note the end of the loop: the last step is the one before ``until``."""
        self._sources.steps_until = until if 0 < until <= LARGEST_COUNT else 0

    def watch_gradients(self, modules: "Mapping[str, torch.nn.Module]", *, then: str | None) -> None:
        """Watch a chain of modules: see :meth:`Hooks.watch_gradients`."""
        if self._finished:
            return
        if self._gradients is None:
            self._gradients = GradientWatch(self._once)
            self._has_checks = True
        self._gradients.watch(modules, then=then)

    def log(self, numbers: Mapping[str, object]) -> None:
        """Keep numbers until they are reported: see :meth:`Hooks.log`."""
        self._logged.add(numbers, self._timeline.step)

    def replay(self, function: "Callable[[], _Result]", every: int) -> "_Result":
        """Call ``function``, in some steps twice: see :meth:`Hooks.replay`."""
        return function() if every <= 0 or self._finished else self._replay.run(function, every)

    def look_at_gradients(self) -> None:
        """Look at this rank's gradients, because a number that the loop has just reported is not finite."""
        if self._bad_gradients is None or self._finished:
            return
        self._has_checks = True
        held = self._bad_gradients.look()
        if held is not None:
            self._timeline.values["bad_gradient"] = held

    def finish(self, *, timeout_s: float, last_words: str | None = None, finished: bool = False) -> None:
        """Send what is left, within ``timeout_s``, and undo every patch. Later calls do nothing.

        ``finished``: the rank means to leave.
        """
        if self._finished:
            return
        self._finished = True
        self._timeline.close()
        self.start_state.close()
        self._profiler.close()
        deadline_s = monotonic() + timeout_s
        self._reporter.finish(timeout_s=timeout_s, last_words=last_words, finished=finished)
        self._device_time.close()
        self._worker_server.close()
        self._point_to_point.uninstall()
        if self._gradients is not None:
            self._gradients.close()
        if self._bad_gradients is not None:
            self._bad_gradients.close()
        if self._faults is not None:
            self._faults.disarm()
        if self._snapshots is not None:
            self._snapshots.close(max(0.0, deadline_s - monotonic()))
        end_copy_threads()
        self._slot_requests.close(max(0.0, deadline_s - monotonic()))
        GATE.uninstall()

    def give_up_slots(self) -> None:
        """Unmap the slots after :meth:`finish`. Do not call this in a rank whose GPU may hang."""
        self._slot_requests.give_up_slots()

    def _note_checks(self, step: int) -> None:
        values = self._timeline.values
        if self._device.wants_current:
            self._look_at_device(self._device.note_current)
        if self._replicas is not None and (sums := self._replicas.check(step)) is not None:
            values["replicas"] = sums
        if self._gradients is not None and (passed := self._gradients.take()) is not None:
            values["nonfinite_origin"] = passed
        if self._bad_gradients is not None and values.get("overflow") == 1.0:
            values.pop("bad_gradient", None)  # the step is skipped, and its gradients are bad by design
            self._bad_gradients.calm()
        if self._bad_gradients is not None and (own := self._bad_gradients.end_step()) is not None:
            values["own_gradients"] = own  # after "bad_gradient", which it replaces in the record if it shows more

    def _look_at_device(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as error:  # noqa: BLE001 - objects of the user, and a lost device, may raise anything
            self._once.warn("the device of this rank is not known", repr(error))

    def _note_checks_next(self) -> None:
        """Have the training thread look at its device at the end of the step (reporter thread)."""
        self._has_checks = True

    def _on_bad_number(self) -> None:
        """Watch the gradients of the next steps: a number that a GPU owed is not finite (reporter thread)."""
        if self._bad_gradients is not None:
            self._bad_gradients.alarm()
            self._has_checks = True

    def _plug_in_faults(self, state: Mapping[str, Stateful]) -> "RequestedFaults":
        # Here, so that a run that allows no faults loads none of their code.
        from holdfast_hooks.faults.requested_faults import RequestedFaults

        return RequestedFaults(self._timeline, state, self._compared, self.rank)

    def _compared(self) -> "Sequence[torch.Tensor] | None":
        return () if self._replicas is None else self._replicas.compared

    def _why_no_snapshots(self, replica: bool) -> str:
        if self._snapshots is None:
            return "this rank was attached without a state"
        grant = self._slot_requests.grant
        if replica and grant is not None and grant.on_disk:
            return "the slots of this rank are on disk"
        return self._snapshots.refusal or self._slot_requests.refusal


def _hello(
    context: RankContext, identity: Identity, coordinates: Mapping[str, int], device: OwnDevice, replica_ranks: int
) -> Hello:
    return Hello(
        pid_namespace=pid_namespace(),
        run=context.run,
        generation=context.generation,
        rank=identity.rank,
        world_size=identity.world_size,
        local_rank=identity.local_rank,
        local_world_size=identity.local_world_size,
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()),
        device=device.name,
        coordinates=dict(coordinates),
        store_port=identity.store_port,
        restarts_left=identity.restarts_left,
        replica_ranks=replica_ranks,
        awaits_start=context.restores and context.saves,
        attachment=next(_attachments),
        training_thread=threading.get_native_id(),
        protocol=PROTOCOL,
    )
