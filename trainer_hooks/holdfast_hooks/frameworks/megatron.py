"""Watches a loop of Megatron: one line before training. Holdfast saves no state for it.

In ``pretrain_gpt.py`` and its like, put it before ``pretrain()``::

    watch_megatron()
    pretrain(...)

In a loop of your own on Megatron Core, put it before ``get_forward_backward_func()``. The line changes what every such
loop calls: the schedules of Megatron Core and the ``step()`` of its optimizers. An iteration that Megatron skips,
because gradients were not finite, is a step like any other. The state stays Megatron's own: a script that starts again
loads its newest ``iter_*``.
"""

import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import holdfast_hooks
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.phases import Phase
from holdfast_proto.rank_context import VARIABLE

_logger = logging.getLogger("holdfast_hooks")

_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
_LOSSES = ("lm loss", "loss")
"""Names under which loss functions of Megatron report the loss. Without one of them, it is the first that they name."""
_newest: "MegatronWatch | None" = None


def watch_megatron(*, iteration: Callable[[], int] | int | None = None) -> "MegatronWatch | None":
    """Report the iterations of this process from now on. Without an agent, return None and change nothing.

    Args:
        iteration: number of the first iteration to train, counted from 0, or a function that returns the number of the
            present one. By default it is Megatron-LM's own number, or 0 if the loop is not Megatron-LM's.

    Call it once on each rank. The rank attaches to its agent when the first iteration begins, and raises
    ConfigurationError then if the agent's context is not valid.
    """
    global _newest  # noqa: PLW0603 - what it changes belongs to the process
    if VARIABLE not in os.environ:
        return None
    if _newest is None:
        watch = MegatronWatch(iteration)
        try:
            watch.follow()
        except (ImportError, AttributeError) as error:
            watch.let_go()
            _logger.warning("Megatron is not watched: this needs Megatron Core 0.16 (%r)", error)
            return None
        _newest = watch
    return _newest


class MegatronWatch:
    """Follows the iterations of one process. :func:`watch_megatron` makes it. Only the training thread uses it."""

    def __init__(self, iteration: Callable[[], int] | int | None) -> None:
        self.should_stop = False
        """Whether the loop should end here, because an operator asked for it: check it after ``optimizer.step()``."""
        self._iteration = iteration
        self._hooks: Hooks | None = None
        self._is_open = False
        self._is_in_pass = False
        self._is_in_step = False
        self._losses: list[Any] = []
        self._tokens = 0
        self._undo: list[Callable[[], None]] = []

    def follow(self) -> None:
        """Put this in front of the schedules, the optimizers, the data iterators and the checkpoints."""
        from megatron.core import dist_checkpointing, optimizer, rerun_state_machine
        from megatron.core.pipeline_parallel import schedules

        for name in _SCHEDULES:
            self._wrap(schedules, name, self.forward_backward)
        for kind in _subclasses(optimizer.MegatronOptimizer):
            if "step" in vars(kind):
                self._wrap(kind, "step", self.step)
        self._wrap(rerun_state_machine.RerunDataIterator, "__next__", self.fetch)
        self._wrap(dist_checkpointing, "save", self.save)

    def forward_backward(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Begin an iteration unless one is open, and run its forward and backward passes, or those of an evaluation."""
        if options.get("forward_only"):
            if self._hooks is not None and not self._is_open:
                self._hooks.enter(Phase.EVAL)
            return inner(*arguments, **options)
        hooks = self._begin()
        hooks.enter(Phase.FORWARD_BACKWARD)
        self._is_in_pass = True
        try:
            result = inner(*arguments, **options)
        finally:
            self._is_in_pass = False
        # An iteration may run its passes again, to find out whether a strange result comes back. The last ones count.
        self._losses = result if isinstance(result, list) else []
        sizes = [options.get(name, 0) for name in ("num_microbatches", "micro_batch_size", "seq_length")]
        self._tokens = math.prod(sizes) if all(type(size) is int for size in sizes) else 0
        return result

    def step(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Step the optimizer, whose first argument this is, and end the iteration."""
        if self._is_in_step:  # the step() of a subclass calls that of its base
            return inner(*arguments, **options)
        hooks = self._begin()  # passes in one CUDA graph do not call what begins an iteration
        hooks.enter(Phase.OPTIMIZER)
        optimizer = arguments[0] if arguments else None
        numbers = {"learning_rate": _learning_rate(optimizer), "loss_scale": _loss_scale(optimizer)}
        self._is_in_step = True
        try:
            result = inner(*arguments, **options)
        finally:
            self._is_in_step = False
        self._report(hooks, result, numbers)
        self._is_open = False
        self.should_stop |= hooks.end_step()
        return result

    def fetch(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Fetch a micro-batch, and count the time to the data."""
        hooks = self._hooks
        if hooks is None or not self._is_in_pass:
            return inner(*arguments, **options)
        hooks.enter(Phase.DATA)
        try:
            return inner(*arguments, **options)
        finally:
            hooks.enter(Phase.FORWARD_BACKWARD)

    def save(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Save a checkpoint of Megatron, and count the time to that."""
        if self._hooks is None:
            return inner(*arguments, **options)
        self._hooks.enter(Phase.CHECKPOINT)
        try:
            return inner(*arguments, **options)
        finally:
            self._hooks.enter(Phase.IDLE)

    def close(self) -> None:
        """Report that this rank leaves, and undo the changes. Without this call, the end of the process reports it."""
        self.let_go()
        if self._hooks is not None:
            self._hooks.close()

    def let_go(self) -> None:
        """Undo the changes. A function that another library has wrapped in the meantime stays as it is."""
        global _newest  # noqa: PLW0603 - as above
        while self._undo:
            self._undo.pop()()
        _newest = None if _newest is self else _newest

    def _begin(self) -> Hooks:
        hooks = self._hooks
        if hooks is None:  # now: pretrain() makes the process groups after watch_megatron()
            hooks = self._hooks = holdfast_hooks.attach(coordinates=_coordinates(), device=_device())
            hooks.restore()
        if not self._is_open:
            self._is_open = True
            hooks.begin_step(max(hooks.next_step, self._number(hooks)))
        return hooks

    def _number(self, hooks: Hooks) -> int:
        if callable(self._iteration):
            return int(self._iteration())
        if self._iteration is not None:
            return self._iteration
        training = sys.modules.get("megatron.training.global_vars")
        try:
            return hooks.next_step if training is None else int(training.get_args().curr_iteration)
        except Exception as error:  # noqa: BLE001 - Megatron-LM may change its arguments
            _logger.debug("the iteration of Megatron-LM is not known: %r", error)
            return hooks.next_step

    def _report(self, hooks: Hooks, result: Any, numbers: dict[str, Any]) -> None:
        losses, self._losses = self._losses, []
        try:
            successful, grad_norm, _ = result
            if numbers["loss_scale"] is not None or not successful:
                hooks.report(overflow=not successful)
            hooks.report(grad_norm=grad_norm, **numbers)
            if losses:  # only the last stage of a pipeline has them
                name = next((name for name in _LOSSES if name in losses[0]), next(iter(losses[0])))
                mean = _mean(losses, name)
                hooks.report(loss=mean)
                hooks.report(tokens=_own_tokens(self._tokens))
                hooks.log({each: mean if each == name else _mean(losses, each) for each in losses[0]})
        except Exception as error:  # noqa: BLE001 - loss functions and optimizers of a user may return anything
            _logger.debug("the numbers of an iteration are not reported: %r", error)

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        inner = vars(owner)[name] if name in vars(owner) else getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return around(inner, *arguments, **options)

        def undo() -> None:
            if vars(owner).get(name) is call:
                setattr(owner, name, inner)

        setattr(owner, name, call)
        self._undo.append(undo)


def _mean(losses: list[Any], name: str) -> Any:
    """Return a loss's mean over the micro-batches: over all tokens, if Megatron gives sums and numbers of tokens."""
    parts = [one[name].detach().reshape(-1) for one in losses]
    total = sum(parts[1:], start=parts[0])
    return total[0] / total[1] if len(total) == 2 else total[0] / len(parts)


def _own_tokens(tokens: int) -> int | None:
    """Return the tokens to report here, or None: ranks of one tensor-parallel group train on the same ones."""
    from megatron.core import parallel_state

    if parallel_state.get_tensor_model_parallel_rank():
        return None
    return tokens // parallel_state.get_context_parallel_world_size() or None


def _learning_rate(optimizer: Any) -> float | None:
    groups = getattr(optimizer, "param_groups", None) or []
    # Megatron marks the groups that follow the rate of --lr. The first group may have a rate of its own.
    rates = [group.get("lr") for group in groups if group.get("default_config", True)]
    return float(rates[0]) if rates and rates[0] is not None else None


def _loss_scale(optimizer: Any) -> Any:
    chained = getattr(optimizer, "chained_optimizers", None)
    scaler = getattr(chained[0] if chained else optimizer, "grad_scaler", None)
    return None if scaler is None else scaler.scale


def _coordinates() -> dict[str, int]:
    from megatron.core import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return {}
    return {
        "pp": parallel_state.get_pipeline_model_parallel_rank(),
        "dp": parallel_state.get_data_parallel_rank(),
        "cp": parallel_state.get_context_parallel_rank(),
        "tp": parallel_state.get_tensor_model_parallel_rank(),
    }


def _device() -> str | None:
    torch = sys.modules["torch"]
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else None


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)
