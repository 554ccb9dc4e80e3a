"""Watches a DeepSpeed engine: one line after ``deepspeed.initialize()``.

::

    engine, *_ = deepspeed.initialize(model=model, config=config)
    watch_engine(engine)

A step is one of the engine's ``global_steps``: with gradient accumulation several calls of ``engine.step()``, and one
``train_batch()`` of a PipelineEngine. The state stays DeepSpeed's own: under ``holdfast run``, a restarted script loads
what it saved with ``engine.save_checkpoint()``.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import holdfast_hooks
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.phases import Phase
from holdfast_proto.rank_context import VARIABLE

_logger = logging.getLogger("holdfast_hooks")


def watch_engine(engine: Any) -> "EngineWatch | None":
    """Report the steps of ``engine`` from now on. Without an agent, return None and leave the engine as it is.

    Args:
        engine: the first value that ``deepspeed.initialize()`` returns. Call this once, on every rank.

    Raises ConfigurationError if the agent's context is not valid.
    """
    if VARIABLE not in os.environ:
        return None
    is_pipeline = hasattr(engine, "train_batch")
    needed = ("train_batch", "eval_batch") if is_pipeline else ("forward", "backward", "step")
    if missing := [name for name in (*needed, "global_steps") if not hasattr(engine, name)]:
        _logger.warning("this engine is not watched, because it has no %s()", missing[0])
        return None
    hooks = holdfast_hooks.attach(device=_device(engine))
    watch = PipelineWatch(engine, hooks) if is_pipeline else EngineWatch(engine, hooks)
    watch.follow()
    return watch


class EngineWatch:
    """Follows the calls of one engine. :func:`watch_engine` makes it. Only the training thread uses it."""

    _METHODS: tuple[str, ...] = ("forward", "backward", "step")

    def __init__(self, engine: Any, hooks: Hooks) -> None:
        self.should_stop = False
        """Whether the loop should end here, because an operator asked for it: check it after ``engine.step()``."""
        self._engine = engine
        self.hooks = hooks
        """For numbers of your own: ``hooks.log({...})``."""
        self._is_open = False
        self._losses: list[Any] = []
        self._originals = {name: getattr(engine, name) for name in self._METHODS}

    def follow(self) -> None:
        """Put this in front of the engine's methods."""
        self.hooks.restore()
        # Attributes of the object: the engine is a torch module, whose own way to set them is for parameters.
        vars(self._engine).update({name: getattr(self, name) for name in self._METHODS})
        monitor: Any = getattr(self._engine, "monitor", None)
        if hasattr(monitor, "write_events"):  # DeepSpeed calls it if the job has one of its monitors
            vars(monitor)["write_events"] = functools.partial(self.write_events, monitor.write_events)
        self.hooks.enter(Phase.DATA)

    def write_events(self, inner: Callable[[Any], Any], events: Any) -> Any:
        """Show what DeepSpeed writes for TensorBoard, W&B or a CSV file, under the same names."""
        try:
            self.hooks.log({name: value for name, value, _ in events})
        except Exception as error:  # noqa: BLE001 - a later DeepSpeed may write events of another form
            _logger.debug("the numbers of DeepSpeed's monitor are not shown: %r", error)
        return inner(events)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Begin a step unless one is open, and call the engine. In evaluation, count the time to that."""
        if not self._engine.training:
            self.hooks.enter(Phase.EVAL)
            return self._originals["forward"](*arguments, **options)
        self._begin()
        self.hooks.enter(Phase.FORWARD_BACKWARD)
        return self._originals["forward"](*arguments, **options)

    def backward(self, loss: Any, *arguments: Any, **options: Any) -> Any:
        """Note the loss of the micro-batch, and call the engine."""
        self._losses.append(loss.detach() if hasattr(loss, "detach") else loss)
        return self._originals["backward"](loss, *arguments, **options)

    def step(self, *arguments: Any, **options: Any) -> Any:
        """Call the engine, and end the step if its optimizer has stepped."""
        before = self._engine.global_steps
        self.hooks.enter(Phase.OPTIMIZER)
        result = self._originals["step"](*arguments, **options)
        self._end(before)
        self.hooks.enter(Phase.DATA)
        return result

    def _begin(self) -> None:
        if not self._is_open:
            self._is_open = True
            # The script may load a checkpoint of DeepSpeed after watch_engine(): then the engine begins later.
            self.hooks.begin_step(max(self.hooks.next_step, self._engine.global_steps))

    def _end(self, steps_before: int) -> None:
        if self._is_open and self._engine.global_steps > steps_before:
            self._is_open = False
            self._report()
            self.should_stop = self.hooks.end_step()

    def _report(self) -> None:
        losses, self._losses = self._losses, []
        try:
            self.hooks.report(
                loss=sum(losses) / len(losses) if losses else None,
                grad_norm=self._engine.get_global_grad_norm(),
                learning_rate=self._engine.get_lr()[0],
            )
        except Exception as error:  # noqa: BLE001 - engines of some configurations have no such numbers
            _logger.debug("the numbers of a step are not reported: %r", error)


class PipelineWatch(EngineWatch):
    """Follows a PipelineEngine, whose ``train_batch()`` is one step. Its phases inside a step cannot be seen."""

    _METHODS = ("train_batch", "eval_batch")

    def train_batch(self, *arguments: Any, **options: Any) -> Any:
        """Call the engine as one step, and note its loss, which is that of all stages."""
        before = self._engine.global_steps
        self._begin()
        self.hooks.enter(Phase.FORWARD_BACKWARD)
        loss = self._originals["train_batch"](*arguments, **options)
        self._losses = [loss.detach() if hasattr(loss, "detach") else loss]
        self._end(before)
        self.hooks.enter(Phase.DATA)
        return loss

    def eval_batch(self, *arguments: Any, **options: Any) -> Any:
        """Call the engine, and count the time to the evaluation."""
        self.hooks.enter(Phase.EVAL)
        result = self._originals["eval_batch"](*arguments, **options)
        self.hooks.enter(Phase.DATA)
        return result


def _device(engine: Any) -> str | None:
    device = getattr(engine, "device", None)
    return str(device) if getattr(device, "type", "") == "cuda" else None
