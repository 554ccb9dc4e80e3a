"""The API of a training loop: attach, restore, begin_step, end_step, steps, enter, report, log, close and others."""

import atexit
import contextlib
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast_hooks.auto import takeover
from holdfast_hooks.full_world import check_replica_ranks, context_of
from holdfast_hooks.hook_errors import ConfigurationError, OnceLog
from holdfast_hooks.identity import Identity
from holdfast_hooks.left_loop import OpenStep
from holdfast_hooks.phases import Phase
from holdfast_hooks.sidecar import Sidecar
from holdfast_hooks.state import data_windows
from holdfast_hooks.state.data_windows import DataWindows
from holdfast_hooks.state.encoding import Stateful, reject_unsuitable
from holdfast_hooks.step_loop import UNRESTORED, StepLoop
from holdfast_hooks.telemetry.bad_gradients import NUMBERS
from holdfast_hooks.telemetry.deferred import to_number
from holdfast_hooks.telemetry.final_traceback import FinalTraceback
from holdfast_hooks.telemetry.own_device import SEARCHED_FOR, OwnDevice, checked_name, may_have_gpus
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_hooks.updates import usual_norm
from holdfast_hooks.updates.update_check import OnSpike, UpdateCheck
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.rank_context import RankContext

if TYPE_CHECKING:
    import torch

_Result = TypeVar("_Result")
_FINGERPRINT_BYTES = (8, 16)
_FLUSH_S = 2.0
_newest: "weakref.ref[Hooks] | None" = None
"""The hooks of the newest call of :func:`attach`, which nothing here keeps alive."""
_LAST_WORDS_S = 0.5


def attach(
    *,
    state: Mapping[str, Stateful] | None = None,
    coordinates: Mapping[str, int] | None = None,
    device: "str | int | torch.device | None" = None,
    check_replicas: bool = True,
    check_data_position: bool = True,
    data_by_step: bool = False,
    on_spike: OnSpike | None = None,
    replica_ranks: int | None = None,
) -> "Hooks":
    """Attach Holdfast to this training process.

    Args:
        state: objects that a restart must restore, by name: model, optimizer, scheduler, data position. The
            random states of Python, numpy and torch are always part of it.
        coordinates: this rank's index in each mesh axis, e.g. ``{"pp": 0, "dp": 1, "tp": 0}``. ``dp`` is the index
            of the rank's share of the data: ranks with different ``dp`` train on different samples.
        device: torch's name of the device on which this rank computes, such as ``cuda:3``. By default it is found: the
            GPU that has the parameters in ``state``; else the one whose memory torch has given out, the current one
            of the training thread if there are several; else, after the first step, the CPU. A GPU that does not exist
            gives one line in the log, and the device is found as by default.
        check_replicas: compare, at the end of every step, some of the parameters in ``state`` that several ranks hold
            alike (under DistributedDataParallel, as replicated DTensors, or as plain tensors that are seen to stay
            equal). After one search for wrappers, this takes a thousandth of the time at most. Pass False if
            replicas may differ between steps, as with local SGD.
        check_data_position: warn once if no object in ``state`` may hold the position in the data, or if torch's random
            numbers are drawn between :meth:`Hooks.restore` and the first step. Pass False if each batch follows from
            the number of the step or from random states.
        data_by_step: whether the script takes the data of each step by the number that :meth:`Hooks.data_of` returns.
            Then data can be left out, as a roll-back after a bad loss does, without an object that holds a position.
        on_spike: function that :meth:`Hooks.should_update` calls when something is bad, on all ranks in the same step,
            such as to lower the learning rate. It gets a :class:`Spike`: an update that is skipped, or what Holdfast
            has found in the loss. Only :meth:`Hooks.should_update` calls it. What it raises ends the rank.
        replica_ranks: number of ranks of one data-parallel replica: 1 under plain data parallelism, tp x pp otherwise.
            Passing it promises that the script takes its layout, and its share of each batch, from the size of the
            world. A run with ``--min-replicas`` may then start it with fewer replicas: see :func:`full_world_size`.

    In a process that no agent has started, all calls work, but the hooks send, save and restore nothing. Under
    ``holdfast observe`` without ``--restore``, and ``holdfast run --auto``, they send everything, and still save and
    restore nothing.
    Raises ConfigurationError if ``state`` cannot be saved, torch knows no such ``device``, ``replica_ranks`` does not
    fit the run or the agent's context is not valid. A rank has one session: close the hooks of an earlier call first.
    """
    global _newest  # noqa: PLW0603 - a process is one rank, and a rank has one session
    takeover.take_over()
    earlier = None if _newest is None else _newest()
    is_second = earlier is not None and earlier.is_open
    hooks = Hooks(
        state=state or {},
        coordinates=coordinates or {},
        device=device,
        check_replicas=check_replicas,
        check_data_position=check_data_position,
        data_by_step=data_by_step,
        on_spike=on_spike,
        replica_ranks=replica_ranks,
    )
    hooks.start()
    if is_second and hooks.is_open:
        hooks.warn_of_a_second()
    _newest = weakref.ref(hooks)
    return hooks


class Hooks:
    """Connects one training loop to Holdfast. :func:`attach` makes it. Only the training thread may call it."""

    def __init__(
        self,
        *,
        state: Mapping[str, Stateful],
        coordinates: Mapping[str, int],
        device: "str | int | torch.device | None",
        check_replicas: bool,
        check_data_position: bool,
        data_by_step: bool = False,
        on_spike: OnSpike | None = None,
        replica_ranks: int | None = None,
        identity: Identity | None = None,
        saves: bool = True,
    ) -> None:
        """Take what :func:`attach` takes.

        ``identity``: the rank's place; None: as the launcher says. ``saves``: whether the state may be saved at all.
        """
        self._pid = os.getpid()
        self._identity = identity
        self._may_save = saves
        self._state = state
        self._context: RankContext | None = None
        self._sidecar: Sidecar | None = None
        self._once = OnceLog()
        self._black_box: BlackBoxWriter | None = None
        self._last_words = FinalTraceback(keep=self._keep_traceback, send=self._send_traceback)
        self._undo = contextlib.ExitStack()
        """Patches that closing undoes, the newest first."""
        self._coordinates = coordinates
        self._device = device
        self._check_replicas = check_replicas
        self._check_data_position = check_data_position
        self._replica_ranks = replica_ranks
        self._updates = UpdateCheck(on_spike, self._once)
        self._data = DataWindows(state, by_step=data_by_step, once=self._once)
        self._timeline = Timeline(_nowhere)
        self._loop = StepLoop(self._timeline, self._once)
        self._failed = False
        self._closed = False

    @classmethod
    def unattached(cls) -> "Hooks":
        """Return hooks that do nothing, as those of a process without Holdfast."""
        return cls(state={}, coordinates={}, device=None, check_replicas=False, check_data_position=False)

    def start(self) -> None:
        """Install the exception hooks and start to report. Without an agent, leave everything as it was."""
        self._last_words.install()  # first: they turn a ConfigurationError of the lines below into its exit code
        identity = self._identity or Identity.from_environment()
        self._context = context_of(identity)
        if self._context is None:
            self._last_words.uninstall()
            return
        if self._context.observed and self._identity is None:
            # A rank of our own has the number that its agent knows it by, whatever groups the script makes.
            identity = identity.as_in_torch()
            self._context = context_of(identity)
            assert self._context is not None
        if not self._may_save:
            self._context = replace(self._context, restores=False)
        self._undo.callback(self._last_words.uninstall)
        check_replica_ranks(self._replica_ranks, self._context, identity.world_size)
        open_step = None
        if self._context.saves:
            _check_state(self._state)
            try:
                open_step = OpenStep(self._state)
            except Exception as error:  # noqa: BLE001 - objects of the user may do anything
                self._once.warn("if the loop is left inside a step, that step is not saved", repr(error))
        self._black_box = _open_black_box(self._context, identity, self._once)
        if self._black_box is not None:
            self._timeline = Timeline(self._black_box.moment)
        # Straight to the timeline: a loop calls this several times a step, and a second frame would double its cost.
        self.enter = self._timeline.enter  # type: ignore[method-assign]
        self._sidecar = Sidecar(
            context=self._context,
            identity=identity,
            state=self._state,
            coordinates=self._coordinates,
            device=self._own_device(),
            timeline=self._timeline,
            black_box=self._black_box,
            once=self._once,
            check_replicas=self._check_replicas,
            replica_ranks=self._replica_ranks or 0,
            updates=self._updates,
            own_states={data_windows.KEY: self._data, usual_norm.KEY: self._updates.norms},
        )
        self._loop = StepLoop(
            self._timeline,
            self._once,
            sidecar=self._sidecar,
            open_step=open_step,
            state=self._state,
            coordinates=self._coordinates,
            check_data_position=self._check_data_position,
            data=self._data,
        )
        if self._context.saves:
            self.enter = self._enter_before_restore  # type: ignore[method-assign]
            self.report = self._report_before_restore  # type: ignore[method-assign]
        self._sidecar.start()
        atexit.register(self._close_at_exit)

    def _own_device(self) -> OwnDevice:
        try:
            wanted = checked_name(self._device)
        except ConfigurationError as error:
            if self._context is None or not self._context.observed:
                raise
            wanted = None  # who observes a run must not end it
            self._once.warn(SEARCHED_FOR, error)
        return OwnDevice(wanted, self._state, may_have_gpus=may_have_gpus(), once=self._once)

    def steps(self, until: int, start: int = 0) -> Iterator[int]:
        """Yield the numbers of the steps to train, ``start`` to ``until - 1``.

        A script with several loops gives each its own steps: ``steps(until=40)``, then ``steps(until=90, start=40)``.
        A restart could not tell steps of one number apart, and would leave some out.

        If the agent has a state to start from, this restores it first and continues at the step after it. Each time
        the loop asks for the next step, the hooks close the one before: they report it, and take a snapshot if one is
        due. After the last step, or on a command to stop, they take a checkpoint. If the loop is left in another way,
        by ``break`` for example, :meth:`close` takes it.
        """
        return self._loop.steps(until, start)

    def restore(self, *, until: int | None = None) -> int:
        """Restore the state that the agent has for this rank, if any; return the number of the first step to train.

        For loops that are no ``for`` loop over :meth:`steps`: call it once before the loop, on all ranks, then
        :meth:`begin_step` and :meth:`end_step` for each step. Later calls restore nothing and return
        :attr:`next_step`.

        Args:
            until: number after the last step. The last step then ends with a checkpoint. Without it, the last
                checkpoint is the newest snapshot when the hooks close.

        Under ``holdfast observe --restore`` this waits until all ranks of the run are there and the agent names the
        state.

        Raises ConfigurationError, SnapshotError and CheckpointUnreadable, all of which end the rank.
        """
        return self._loop.restore(until)

    @property
    def next_step(self) -> int:
        """Number of the step to train next: 0 at first, and after :meth:`restore` the step after the restored one."""
        return self._loop.next_step

    def data_of(self, step: int) -> int:
        """Return the number of the data that a step trains on: its own number, and those that the run has left out.

        ``step``: the one under way, or :attr:`next_step`. A script that takes the data of a step by this number passes
        ``data_by_step=True`` to :func:`attach`.
        """
        return self._data.data_of(step)

    def begin_step(self, step: int | None = None) -> int:
        """Begin a step, by default :attr:`next_step`; return its number.

        A step is what ends with a change of the parameters. With gradient accumulation, that is one step for all its
        micro-batches; with several optimizers, one step for one turn of all of them.

        Raises ConfigurationError, before anything is trained, if the agent has a state and :meth:`restore` was not
        called, or if it was called and the loop does not begin at :attr:`next_step` or later.
        """
        return self._loop.begin(step)

    def end_step(self) -> bool:
        """End the step: report it, and take a snapshot if one is due. Return True if the loop must be left here.

        Call it when everything of the step has been done that changes ``state``: optimizers, schedulers, and the
        position in the data.

        Raises ConfigurationError outside of a step if the agent has a state that is not restored.
        """
        return self._loop.end()

    @property
    def is_open(self) -> bool:
        """Whether this connects a rank to its agent now."""
        return self._sidecar is not None and not self._closed and os.getpid() == self._pid

    def warn_of_a_second(self) -> None:
        """Log that the hooks of an earlier call are still open: the agent hears of one of them only."""
        advice = "close the hooks of the first call before, or use them; checkpoints may be lost"
        self._once.warn("attach() was called a second time in this rank", advice)

    def enter(self, phase: Phase) -> None:
        """Count the time from now on to ``phase``, until the next call or the end of the step.

        Raises ConfigurationError for the phase OPTIMIZER if the agent has a state that is not restored.
        """
        self._timeline.enter(phase)

    def report(
        self,
        *,
        loss: "float | torch.Tensor | None" = None,
        validation_loss: "float | torch.Tensor | None" = None,
        grad_norm: "float | torch.Tensor | None" = None,
        learning_rate: float | None = None,
        tokens: int | None = None,
        update_norm: "float | torch.Tensor | None" = None,
        loss_scale: "float | torch.Tensor | None" = None,
        overflow: "bool | torch.Tensor | None" = None,
        mfu: "float | torch.Tensor | None" = None,
        pipeline_bubble: "float | torch.Tensor | None" = None,
        balance_loss: "float | torch.Tensor | None" = None,
        dropped_tokens: "int | torch.Tensor | None" = None,
        samples: bytes | None = None,
    ) -> None:
        """Report numbers of the current step. This never waits for a GPU: the reporter thread reads tensors later.

        If a step reports a value several times, the last one counts. Only ``tokens`` add up.

        Args:
            loss: training loss. The loss of the run is the mean over the ranks that report one.
            validation_loss: loss on held-out data.
            grad_norm: global norm of the gradient, before clipping.
            learning_rate: learning rate of the step.
            tokens: number of tokens that this rank trained on. The number of the run is the sum over ranks.
            update_norm: global norm of the parameters' change.
            loss_scale: factor on the loss, if the precision (fp16) needs one.
            overflow: whether the step was skipped because gradients were not finite.
            mfu: model FLOPs utilisation, 0 to 1: the model's FLOP/s over the device's peak in the dtype used.
            pipeline_bubble: share of the step, 0 to 1, in which this rank's pipeline stage was idle.
            balance_loss: load-balance loss of a mixture of experts' router.
            dropped_tokens: number of tokens that expert capacity dropped on this rank. The run's is the sum.
            samples: fingerprint, 8 or 16 bytes, of the samples that this rank used in the step. If two data-parallel
                ranks or two steps have the same fingerprint, they used the same samples, and Holdfast reports an
                incident. Ranks that share samples by design, those with one ``dp``, report the same one. Include the
                epoch if batches repeat from epoch to epoch.

        Raises ConfigurationError if the agent has a state that is not restored, and a number but ``validation_loss``
        is given.
        """
        # Plain floats, the usual case, are stored right here, because a call costs more than all the rest.
        values = self._timeline.values
        if type(loss) is float:
            values["loss"] = loss
            if loss - loss:  # the cheapest test: only of a number that is not finite it is NaN, which is true
                self._look_at_gradients()
        elif loss is not None:
            self._note("loss", loss)
        if type(grad_norm) is float:
            values["grad_norm"] = grad_norm
            if grad_norm - grad_norm:
                self._look_at_gradients()
        elif grad_norm is not None:
            self._note("grad_norm", grad_norm)
        if learning_rate is not None:
            self._note("learning_rate", learning_rate)
        # One test for all values that most steps do not report. `is` never asks a tensor for its value.
        if not (
            validation_loss
            is update_norm
            is loss_scale
            is overflow
            is mfu
            is pipeline_bubble
            is balance_loss
            is dropped_tokens
            is None
        ):
            self._note_all(
                validation_loss=validation_loss,
                update_norm=update_norm,
                loss_scale=loss_scale,
                overflow=overflow,
                mfu=mfu,
                pipeline_bubble=pipeline_bubble,
                balance_loss=balance_loss,
                dropped_tokens=dropped_tokens,
            )
        if samples is not None:
            self._note_samples(samples)
        if type(tokens) is int and tokens >= 0:
            values["tokens"] = values.get("tokens", 0) + tokens  # type: ignore[operator]
        elif tokens is not None:
            self._once.warn("tokens is not reported", "give a whole number as an int")

    def should_update(self, grad_norm: "float | torch.Tensor") -> bool:
        """Return whether this step's update should be taken, the same on all ranks. This waits for the GPU.

        All ranks call it once in each step: after the backward pass and clipping, and before ``optimizer.step()``. It
        is one collective of the default process group. It says False in two cases:

        * The norm of a rank is not finite. The step then counts as skipped (``overflow``), and its loss does not count.
        * The largest norm is more than 10 times the usual one: the median of the newest 64 norms whose updates were
          taken. Nothing is too large before 16 of them. After eight such steps in a row the next update is taken, and
          the norms begin anew.

        The norms are part of the saved state, so a run that is restored decides as an undisturbed one. Without an agent
        the answer is the same, and nothing is saved.

        Args:
            grad_norm: global norm of the gradient, before clipping, such as ``clip_grad_norm_`` returns it.
        """
        return self._updates.should_update(grad_norm, self._timeline, self.log)

    def replay(self, function: Callable[[], _Result], *, every: int) -> _Result:
        """Call ``function``, which trains on one batch, and return its result. In some steps, check it by a replay.

        In each step whose number is a multiple of ``every``, all ranks put the state back and call ``function`` again.
        Holdfast compares the bits of everything that each rank gives to its collectives and of the state afterwards,
        and reports a rank that computed other bits. Such a rank has corrupted the training silently. All ranks call
        this once in each step, with the same ``every``.

        ``function`` computes gradients and takes the update, with the batch of the step, which it does not load
        itself. It ends with cleared gradients. What counts in plain numbers, such as a scheduler's ``step()``, follows
        after it. A step that cannot be put back is not replayed, and one line in the log says why.

        A replay takes the time of the step once more, and needs the snapshot of the step before, which it has taken.
        It changes no result: the second run computes the same bits, or the one of three that two agree on. It finds a
        unit that computes wrong now and then, and not one that always computes the same wrong bits. Without an agent,
        ``function`` is called once in each step.

        Args:
            every: number of steps from one replay to the next; 0: none.
        """
        return function() if self._sidecar is None or self._closed else self._sidecar.replay(function, every)

    def log(self, numbers: Mapping[str, object]) -> None:
        """Show numbers under names of your own, such as rewards. Like :meth:`report`, this never waits for a GPU.

        The status, the console and Prometheus show the newest number of each name. If several ranks log a name, the
        number of the lowest of them is shown. Holdfast judges none of them: :meth:`report` takes those that it watches.

        Args:
            numbers: numbers, or tensors of one number, by name. Anything else is left out. Names have 100 characters at
                most, and there may be 64 of them.
        """
        if self._sidecar is not None and not self._closed:
            self._sidecar.log(numbers)

    def watch_gradients(self, modules: "Mapping[str, torch.nn.Module]", *, then: str | None = "loss") -> None:
        """Name the module in which a gradient first is not finite. In a long chain, name the part of the chain.

        This costs at most four sums in a backward pass. Call it once for each chain, such as a pipeline stage, before
        the first step.

        Args:
            modules: a chain by name, in the order of the forward pass. Each module takes the output of the one before.
                Modules inside a graph of torch.compile are not watched.
            then: name to report if the gradient of the last output is not finite. None if that gradient comes from
                another rank, which then reports it.
        """
        if self._sidecar is not None:
            self._sidecar.watch_gradients(modules, then=then)

    def close(self) -> None:
        """Report that this rank leaves, send what is left (for two seconds at most) and undo every patch.

        If the loop was left inside a step, by ``break`` for example, this takes the last checkpoint first, if the step
        has changed all that was due, going by the steps before it. Else the state may be that of no step, and Holdfast
        writes the newest snapshot instead.

        A function that another library has wrapped in the meantime keeps that wrapper, and ours does nothing any more.
        Later calls do nothing.
        """
        self._close(finished=not self._failed)

    def leave(self, *, finished: bool, process_ends: bool = False) -> None:
        """Close as :meth:`close` does. ``finished``: the rank has done what it was to do, and means to leave."""
        self._close(finished=finished and not self._failed, process_ends=process_ends)

    def fail(self, error: BaseException) -> None:
        """Report the exception that ends this rank."""
        self._last_words.say(error)

    def __enter__(self) -> "Hooks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (SystemExit, GeneratorExit)):
            self._close(finished=not (isinstance(error, SystemExit) and error.code))
        else:
            # The exception hooks stay until the process ends: they turn a ConfigurationError into its exit code.
            self._last_words.say(error)

    def _close_at_exit(self) -> None:
        self._close(finished=not self._failed, process_ends=True)

    def _close(self, *, finished: bool, process_ends: bool = False) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        if finished and self._sidecar is not None:
            try:
                self._loop.end_left_step()
            except Exception as error:  # noqa: BLE001 - closing never raises into the user's script
                self._once.warn("the step that the loop was left in is not saved", repr(error))
        if finished and self._loop.owes_restore:
            self._say_unrestored()
        if finished and self._black_box is not None:
            self._black_box.finish()
        if self._sidecar is not None:
            self._sidecar.finish(timeout_s=_FLUSH_S, finished=finished)
            # A GPU that has locked the slots unlocks them only when its work is done. After an error it may hang, and
            # the end of the process unlocks them without waiting.
            if finished and not process_ends:
                self._sidecar.give_up_slots()
        self._undo.close()

    def _enter_before_restore(self, phase: Phase) -> None:
        """Take the place of :meth:`enter` until the loop begins.

        Data may be loaded, and a model may be evaluated or warmed up, before it gets its state. Only the optimizer
        trains it.
        """
        if self._loop.has_begun:
            self.enter = self._timeline.enter  # type: ignore[method-assign]
        elif phase == Phase.OPTIMIZER:
            self._loop.notice_without_restore("entered the optimizer")
        self._timeline.enter(phase)

    def _report_before_restore(self, **numbers: Any) -> None:
        """Take the place of :meth:`report` likewise. Other numbers may be constants, or come from an evaluation."""
        if self._loop.has_begun:
            del self.report
        elif numbers.get("loss") is not None or numbers.get("grad_norm") is not None:
            self._loop.notice_without_restore("reported the loss of a step")
        Hooks.report(self, **numbers)

    def _say_unrestored(self) -> None:
        """Say that the hooks are closed without the state of the run. At its end, the leader judges the run by that.

        Nothing is raised: what the script does after its training, such as to write a result, must not be lost.
        """
        self._keep_traceback(UNRESTORED)
        with contextlib.suppress(Exception):  # a script whose stderr is closed ends as it would
            print(UNRESTORED, file=sys.stderr, flush=True)

    def _look_at_gradients(self) -> None:
        if self._sidecar is not None:
            self._sidecar.look_at_gradients()

    def _note(self, name: str, value: "float | torch.Tensor") -> None:
        try:
            number = self._timeline.values[name] = to_number(value)
            if type(number) is float and name in NUMBERS and not math.isfinite(number):
                self._look_at_gradients()
        except Exception as error:  # noqa: BLE001 (an object's own conversion may raise anything)
            self._once.warn(f"{name} is not reported", error)

    def _note_all(self, **values: "float | torch.Tensor | None") -> None:
        for name, value in values.items():
            if type(value) is float:
                self._timeline.values[name] = value
            elif value is not None:
                self._note(name, value)

    def _note_samples(self, fingerprint: bytes) -> None:
        if type(fingerprint) is bytes and len(fingerprint) in _FINGERPRINT_BYTES:
            self._timeline.values["samples"] = fingerprint
        else:
            self._once.warn("samples is not reported", "give a fingerprint of 8 or 16 bytes")

    def _keep_traceback(self, words: str) -> None:
        if self._black_box is not None:
            self._black_box.last_words(words)

    def _send_traceback(self, words: str) -> None:
        self._failed = True
        if self._sidecar is not None and not self._closed:
            self._sidecar.finish(timeout_s=_LAST_WORDS_S, last_words=words)


def _nowhere(step: int, phase: int, unix_ns: int) -> None:
    """Take the place of a black box."""


def _check_state(state: Mapping[str, Stateful]) -> None:
    try:
        reject_unsuitable(state)
    except TypeError as error:
        raise ConfigurationError(str(error)) from None


def _open_black_box(context: RankContext, identity: Identity, once: OnceLog) -> BlackBoxWriter | None:
    path = Path(context.black_box)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return BlackBoxWriter(
            path,
            run=context.run,
            generation=context.generation,
            rank=identity.rank,
            world_size=identity.world_size,
        )
    except OSError as error:
        once.warn("this rank has no black box", error)
        return None
