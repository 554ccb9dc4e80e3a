"""Measures a rank's own time on its GPU, step by step: puts the marks, the calls and the phases together.

What it can separate: loops whose collectives are made in Python and are not asynchronous, and the reducer of
DistributedDataParallel. What it cannot: ``fully_shard``, pipelines, asynchronous calls, CUDA graphs and functional
collectives. There the GPU's waiting is mixed into its work, and the time stays unknown.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.device_time.gpu_marks import CudaMarks, GpuMarks
from holdfast_hooks.device_time.group_calls import GroupCalls
from holdfast_hooks.device_time.own_spans import OwnSpans
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.state.bucket_order import wrappers
from holdfast_hooks.telemetry.timeline import Moment, Timeline
from holdfast_proto.v1 import common_pb2 as common

# Judges from the newest steps whether a rank's own work on its GPU is separated from its waiting.
#
# A rank is compared with others if the time of half of its steps is known (the detector `straggler`). So that decides
# here, too, over stretches of at least WINDOW_STEPS steps. The first answer comes earlier: some loops begin with steps
# that nobody can separate, while wrappers are looked for.

WINDOW_STEPS = 8
"""Steps of a stretch, at least."""
FIRST_UNKNOWN_STEPS = 3
"""Steps at the start of a loop that may be unknown although later ones are not."""

Answer = tuple["common.OwnTimeSource", str]
"""The source of a rank's own time; with OWN_TIME_SOURCE_NONE the reason, else nothing."""

NOT_YET: Answer = (common.OWN_TIME_SOURCE_UNSPECIFIED, "")
_EVENTS: Answer = (common.OWN_TIME_SOURCE_EVENTS, "")


class Separation:
    """The answer for one rank. It is one value, so that a thread that reads it never sees a half."""

    def __init__(self) -> None:
        self.answer = NOT_YET
        self._known = 0
        self._unknown = 0
        self._is_final = False

    def look(self, known_steps: int, unknown_steps: int, why_unknown: str) -> None:
        """Take in how many steps of the loop are known and unknown so far, and why the newest unknown one is."""
        known, unknown = known_steps - self._known, unknown_steps - self._unknown
        if self.answer == NOT_YET:
            if not known and unknown <= FIRST_UNKNOWN_STEPS:
                return
            is_separated = known > 0
        elif known + unknown < WINDOW_STEPS:
            return
        else:
            is_separated = known >= unknown
        self._known, self._unknown = known_steps, unknown_steps
        if self._is_final:
            return
        if is_separated:
            self.answer = _EVENTS
        elif self.answer[0] != common.OWN_TIME_SOURCE_NONE:  # the first reason stays: it may change in each step
            self.answer = (common.OWN_TIME_SOURCE_NONE, why_unknown)

    def fail(self, why: str) -> None:
        """Note that nothing is measured from now on."""
        self._is_final = True
        self.answer = (common.OWN_TIME_SOURCE_NONE, why)


# Finds where the backward pass of DistributedDataParallel ends and its wait for other ranks begins.
#
# Its reducer sends each bucket of gradients in a stream of its own while the backward pass continues. The current
# stream waits for them after the last gradient. So the rank's own work ends with the last gradient: that of the
# first trained parameter, mostly. Whatever comes after it, up to the next phase, is not counted.

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class DataParallelModels:
    """The models that DistributedDataParallel wraps in this process, with a hook on one parameter of each."""

    def __init__(self, on_last_gradient: Callable[[], None]) -> None:
        self._on_last_gradient = on_last_gradient
        self._handles: list[RemovableHandle] = []
        self.groups: set[str] = set()
        """Names of the groups whose unseen calls are those of a reducer."""

    def find(self) -> None:
        """Follow all wrappers of the process, once."""
        self.follow(wrappers())

    def follow(self, wrappers: Iterable[Any]) -> None:
        """Put the hooks on the models of wrappers."""
        for wrapper in wrappers:
            first = next((one for one in wrapper.module.parameters() if one.requires_grad), None)
            # At the start of a forward pass, buffers are sent by a call of C++, for which the current stream waits.
            sends_buffers = wrapper.broadcast_buffers and any(True for _ in wrapper.module.buffers())
            if first is None or sends_buffers:
                continue
            self._handles.append(first.register_post_accumulate_grad_hook(self._after_gradient))
            self.groups.add(wrapper.process_group.group_name)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.groups = set()

    def _after_gradient(self, _parameter: object) -> None:
        self._on_last_gradient()


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
