"""Watches a DeepSpeed engine: one line after ``deepspeed.initialize()``.

::

    engine, *_ = deepspeed.initialize(model=model, config=config)
    watch_engine(engine)

A step is one of the engine's ``global_steps``: with gradient accumulation several calls of ``engine.step()``. The state
stays DeepSpeed's own: under ``holdfast run``, a restarted script loads what it saved with ``engine.save_checkpoint()``.
"""

import logging
import os
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
    if missing := [name for name in ("forward", "backward", "step", "global_steps") if not hasattr(engine, name)]:
        _logger.warning("this engine is not watched, because it has no %s()", missing[0])
        return None
    watch = EngineWatch(engine, holdfast_hooks.attach(device=_device(engine)))
    watch.follow()
    return watch


class EngineWatch:
    """Follows the calls of one engine. :func:`watch_engine` makes it. Only the training thread uses it."""

    def __init__(self, engine: Any, hooks: Hooks) -> None:
        self.should_stop = False
        """Whether the loop should end here, because an operator asked for it: check it after ``engine.step()``."""
        self._engine = engine
        self._hooks = hooks
        self._is_open = False
        self._losses: list[Any] = []
        self._forward, self._backward, self._step = engine.forward, engine.backward, engine.step

    def follow(self) -> None:
        """Put this in front of three methods of the engine."""
        self._hooks.restore()
        # Attributes of the object: the engine is a torch module, whose own way to set them is for parameters.
        vars(self._engine).update(forward=self.forward, backward=self.backward, step=self.step)
        self._hooks.enter(Phase.DATA)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Begin a step unless one is open, and call the engine. In evaluation, count the time to that."""
        if not self._engine.training:
            self._hooks.enter(Phase.EVAL)
            return self._forward(*arguments, **options)
        if not self._is_open:
            self._is_open = True
            # The script may load a checkpoint of DeepSpeed after watch_engine(): then the engine begins later.
            self._hooks.begin_step(max(self._hooks.next_step, self._engine.global_steps))
        self._hooks.enter(Phase.FORWARD_BACKWARD)
        return self._forward(*arguments, **options)

    def backward(self, loss: Any, *arguments: Any, **options: Any) -> Any:
        """Note the loss of the micro-batch, and call the engine."""
        self._losses.append(loss.detach() if hasattr(loss, "detach") else loss)
        return self._backward(loss, *arguments, **options)

    def step(self, *arguments: Any, **options: Any) -> Any:
        """Call the engine, and end the step if its optimizer has stepped."""
        before = self._engine.global_steps
        self._hooks.enter(Phase.OPTIMIZER)
        result = self._step(*arguments, **options)
        if self._is_open and self._engine.global_steps > before:
            self._is_open = False
            self._report()
            self.should_stop = self._hooks.end_step()
        self._hooks.enter(Phase.DATA)
        return result

    def _report(self) -> None:
        losses, self._losses = self._losses, []
        try:
            self._hooks.report(
                loss=sum(losses) / len(losses) if losses else None,
                grad_norm=self._engine.get_global_grad_norm(),
                learning_rate=self._engine.get_lr()[0],
            )
        except Exception as error:  # noqa: BLE001 - engines of some configurations have no such numbers
            _logger.debug("the numbers of a step are not reported: %r", error)


def _device(engine: Any) -> str | None:
    device = getattr(engine, "device", None)
    return str(device) if getattr(device, "type", "") == "cuda" else None
