"""Measures a rank's own time on its GPU, step by step: puts the marks, the calls and the phases together.

What it can separate: loops whose collectives are made in Python and are not asynchronous, and the reducer of
DistributedDataParallel. What it cannot: ``fully_shard``, pipelines, asynchronous calls, CUDA graphs and functional
collectives. There the GPU's waiting is mixed into its work, and the time stays unknown.
"""

import logging
import sys

from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.device_time.data_parallel import DataParallelModels
from holdfast_hooks.device_time.gpu_marks import CudaMarks, GpuMarks
from holdfast_hooks.device_time.group_calls import GroupCalls
from holdfast_hooks.device_time.own_spans import OwnSpans
from holdfast_hooks.device_time.separation import NOT_YET, Answer, Separation
from holdfast_hooks.once import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Moment, Timeline
from holdfast_proto.v1 import common_pb2 as common

_log = logging.getLogger("holdfast_hooks")

_TRAINING = frozenset((int(Phase.FORWARD_BACKWARD), int(Phase.OPTIMIZER)))
"""Other phases may be those of one rank alone."""
_SEARCH_AFTER_STEPS = 2
"""Steps after which wrappers are looked for: a loop may make them in its first step."""

_TOO_LATE = "torch had not used the GPU before the first step"


class DeviceTime:
    """Follows the training thread. Without a GPU that torch has initialised, it does nothing."""

    def __init__(self, timeline: Timeline, once: OnceLog, marks: GpuMarks | None = None) -> None:
        self._timeline = timeline
        self._once = once
        self._spans = OwnSpans(marks or CudaMarks())
        self._separation = Separation()
        self._calls = GroupCalls(self, once)
        self._models = DataParallelModels(self.last_gradient)
        self._before: Moment | None = None
        self._step = -1
        self._steps = 0
        self._searched = False
        self._saw_last_gradient = False
        self._failed = False
        self._explained = False

    @property
    def own_s(self) -> float:
        """Seconds of own work on the GPU, over the steps that are known."""
        return self._spans.own_s

    @property
    def steps(self) -> int:
        """Number of the steps that are known."""
        return self._spans.steps

    def source(self, device: str, *, stepped: bool) -> Answer:
        """Return how the own time of this rank is measured, and if it is not, why.

        Args:
            device: torch's name of the rank's device; empty: not known yet.
            stepped: whether the first step is over.
        """
        is_on_gpu = device.startswith("cuda")
        if device and not is_on_gpu and not self.steps:
            return common.OWN_TIME_SOURCE_HOST, ""
        if self._before is None:
            return (common.OWN_TIME_SOURCE_NONE, _TOO_LATE) if is_on_gpu and stepped else NOT_YET
        return self._separation.answer

    def install(self) -> None:
        """Follow the steps from now on, if torch uses a GPU (training thread, before the first step)."""
        torch = sys.modules.get("torch")
        if self._before is None and torch is not None and torch.cuda.is_initialized():
            self.follow()

    def follow(self) -> None:
        """Follow the steps from now on (training thread)."""
        self._calls.install()
        self._before = self._timeline.intercept(self._moment)

    def close(self) -> None:
        """Undo every patch (training thread)."""
        self._calls.uninstall()
        self._models.close()
        if self._before is not None:
            self._timeline.give_back(self._moment, self._before)
        self._failed = True

    def read(self) -> None:
        """Add up what the GPU has finished. Never waits for it (reporter thread)."""
        if self._before is None:
            return
        try:
            with GATE.passing() as may_call:
                if may_call:
                    self._spans.read()
        except RuntimeError as error:  # the GPU is lost
            self._once.warn("the own time on the GPU is not measured", error)
        self._separation.look(self._spans.steps, self._spans.unknown_steps, self._spans.why_unknown)
        source, why = self._separation.answer
        if not self._explained and not self._failed and source == common.OWN_TIME_SOURCE_NONE:
            self._explained = True
            _log.info("a step's own time on the GPU cannot be separated: %s", why)

    def call_begins(self) -> None:
        """See CallListener."""
        self._guarded_pause()

    def call_returns(self, *, is_over: bool) -> None:
        """See CallListener. What follows a call that is not over counts from the next phase on."""
        if is_over and self._timeline.phase in _TRAINING and not self._failed:
            try:
                self._spans.resume()
            except RuntimeError as error:
                self._fail(error)

    def cannot_tell(self, why: str) -> None:
        """See CallListener."""
        self._spans.give_up(why)

    def last_gradient(self) -> None:
        """Note that the backward pass has made its last gradient, and that the reducer waits from here on."""
        self._saw_last_gradient = True
        self._guarded_pause()

    def _moment(self, step: int, phase: int, unix_ns: int) -> None:
        assert self._before is not None
        self._before(step, phase, unix_ns)
        if self._failed:
            return
        try:
            if step != self._step:
                self._turn(step)
            if phase in _TRAINING:
                self._spans.resume()
            else:
                self._spans.pause()
        except Exception as error:  # noqa: BLE001 - whatever fails here, training must continue
            self._fail(error)

    def _turn(self, step: int) -> None:
        self._step = step
        self._check_calls()
        self._spans.end_step()
        self._spans.begin_step()
        self._steps += 1

    def _check_calls(self) -> None:
        """Make the step that ends unknown if it had calls that were not seen."""
        unseen = self._calls.unseen().keys()
        if unseen and self._steps >= _SEARCH_AFTER_STEPS and not self._searched:
            self._searched = True
            self._models.find()
            self._spans.give_up("its wrapper was not known yet")
        if unseen - self._models.groups:
            self._spans.give_up("it makes calls with other ranks that Python does not see")
        elif unseen and not self._saw_last_gradient:
            self._spans.give_up("the first parameter has no gradient, so that the end of the backward pass is not seen")
        self._saw_last_gradient = False

    def _guarded_pause(self) -> None:
        if self._failed:
            return
        try:
            self._spans.pause()
        except RuntimeError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._separation.fail("the GPU refused to mark a moment: the rank's log has its error")
        self._once.warn("the own time on the GPU is not measured", repr(error))
