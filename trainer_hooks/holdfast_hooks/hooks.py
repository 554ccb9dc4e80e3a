"""The API of a training loop: attach, steps, enter, report, watch_gradients, close."""

import atexit
import contextlib
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast_hooks.errors import ConfigurationError
from holdfast_hooks.identity import Identity
from holdfast_hooks.left_loop import LeftStep, OpenStep
from holdfast_hooks.once import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.restore.starting_point import start_from
from holdfast_hooks.sidecar import Sidecar
from holdfast_hooks.snapshots.snapshot_taker import reject_unsuitable
from holdfast_hooks.state.encoding import Stateful
from holdfast_hooks.telemetry.bad_gradients import NUMBERS
from holdfast_hooks.telemetry.deferred import to_number
from holdfast_hooks.telemetry.last_words import LastWords
from holdfast_hooks.telemetry.own_device import SEARCHED_FOR, OwnDevice, checked_name, may_have_gpus
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.rank_context import RankContext

if TYPE_CHECKING:
    import torch

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

    In a process that no agent has started, all calls work, but the hooks send, save and restore nothing. Under
    ``holdfast observe`` they send everything, and still save and restore nothing.
    Raises ConfigurationError if ``state`` cannot be saved, torch knows no such ``device`` or the agent's context is not
    valid. A rank has one session:
    close the hooks of an earlier call first.
    """
    global _newest  # noqa: PLW0603 - a process is one rank, and a rank has one session
    earlier = None if _newest is None else _newest()
    is_second = earlier is not None and earlier.is_open
    hooks = Hooks(state=state or {}, coordinates=coordinates or {}, device=device, check_replicas=check_replicas)
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
    ) -> None:
        self._pid = os.getpid()
        self._state = state
        self._context: RankContext | None = None
        self._sidecar: Sidecar | None = None
        self._once = OnceLog()
        self._black_box: BlackBoxWriter | None = None
        self._last_words = LastWords(keep=self._keep_words, send=self._send_words)
        self._undo = contextlib.ExitStack()
        """Patches that closing undoes, the newest first."""
        self._coordinates = coordinates
        self._device = device
        self._check_replicas = check_replicas
        self._timeline = Timeline(_nowhere)
        self._open_step = OpenStep({})
        self._until = 0
        self._prepared = False
        self._next_step = 0
        self._stopped = False
        self._failed = False
        self._closed = False

    def start(self) -> None:
        """Install the exception hooks and start to report. Without an agent, leave everything as it was."""
        self._last_words.install()  # first: they turn a ConfigurationError of the lines below into its exit code
        identity = Identity.from_environment()
        self._context = _read_context(identity)
        if self._context is None:
            self._last_words.uninstall()
            return
        self._undo.callback(self._last_words.uninstall)
        if not self._context.observed:
            _check_state(self._state)
            try:
                self._open_step = OpenStep(self._state)
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
        )
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
        self._prepare()
        timeline, sidecar, open_step = self._timeline, self._sidecar, self._open_step
        if sidecar is not None:
            sidecar.steps_until(until)
        self._until = until
        first = max(start, self._next_step)
        if sidecar is not None and first < until and first <= timeline.step:
            advice = f"give this loop its own steps, such as steps(until={until}, start={timeline.step + 1})"
            self._once.warn("a second loop repeats numbers of steps, so that a restart would leave some out", advice)
        for step in range(first, until):
            if self._stopped:
                break
            timeline.begin(step)
            if sidecar is None:
                yield step
                continue
            open_step.begin(step)
            try:
                yield step
            except GeneratorExit:
                # The loop may be left by an error, too. Whether it was is known where the hooks are closed.
                open_step.leave()
                raise
            open_step.step = -1  # first: a signal handler may call sys.exit() at any place below
            self._stopped = sidecar.end_step(step, until)
        timeline.enter(Phase.IDLE)

    @property
    def is_open(self) -> bool:
        """Whether this connects a rank to its agent now."""
        return self._sidecar is not None and not self._closed and os.getpid() == self._pid

    def warn_of_a_second(self) -> None:
        """Log that the hooks of an earlier call are still open: the agent hears of one of them only."""
        advice = "close the hooks of the first call before, or use them; checkpoints may be lost"
        self._once.warn("attach() was called a second time in this rank", advice)

    def enter(self, phase: Phase) -> None:
        """Count the time from now on to ``phase``, until the next call or the end of the step."""
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
                self._end_left_step(self._sidecar)
            except Exception as error:  # noqa: BLE001 - closing never raises into the user's script
                self._once.warn("the step that the loop was left in is not saved", repr(error))
        if finished and self._black_box is not None:
            self._black_box.finish()
        if self._sidecar is not None:
            self._sidecar.finish(timeout_s=_FLUSH_S, finished=finished)
            # A GPU that has locked the slots unlocks them only when its work is done. After an error it may hang, and
            # the end of the process unlocks them without waiting.
            if finished and not process_ends:
                self._sidecar.give_up_slots()
        self._undo.close()

    def _end_left_step(self, sidecar: Sidecar) -> None:
        """Keep what a loop that was left by ``break``, ``return`` or ``sys.exit`` has done."""
        step, left = self._open_step.step, self._open_step.judge()
        if left is LeftStep.COMPLETE:
            sidecar.end_step(step, self._until, left=True)
            # In any other case the phase tells the other side that this rank left in the middle of a step.
            self._timeline.enter(Phase.IDLE)

    def _prepare(self) -> None:
        """Restore the state before the first step, or make sure that it can be saved at all."""
        if self._prepared or self._sidecar is None or self._context is None:
            return
        self._prepared = True
        self._sidecar.before_first_step()
        restored = start_from(self._context, self._state, rank=self._sidecar.rank, coordinates=self._coordinates)
        self._next_step = restored + 1

    def _look_at_gradients(self) -> None:
        if self._sidecar is not None:
            self._sidecar.look_at_gradients()

    def _note(self, name: str, value: "float | torch.Tensor") -> None:
        try:
            number = self._timeline.values[name] = to_number(value)
            if type(number) is float and name in NUMBERS and not math.isfinite(number):
                self._look_at_gradients()
        except (TypeError, ValueError, RuntimeError) as error:
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

    def _keep_words(self, words: str) -> None:
        if self._black_box is not None:
            self._black_box.last_words(words)

    def _send_words(self, words: str) -> None:
        self._failed = True
        if self._sidecar is not None and not self._closed:
            self._sidecar.finish(timeout_s=_LAST_WORDS_S, last_words=words)


def _nowhere(step: int, phase: int, unix_ns: int) -> None:
    """Take the place of a black box."""


def _read_context(identity: Identity) -> RankContext | None:
    try:
        return RankContext.from_environment(rank=identity.rank)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


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
