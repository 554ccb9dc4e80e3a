"""Watches torchtitan's Trainer: its steps, phases and numbers. Holdfast saves no state for it.

Start this module in place of ``torchtitan.train``. It takes the same arguments::

    holdfast observe -- torchrun --nproc-per-node 8 -m holdfast_hooks.frameworks.torchtitan \\
        --module llama3 --config llama3_8b

A script that builds its trainer itself takes one line instead::

    trainer = config.build()
    watch_trainer(trainer)
    trainer.train()

The state stays torchtitan's own: a trainer that starts again loads the newest checkpoint of its checkpointer.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import holdfast_hooks
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.phases import Phase
from holdfast_proto.rank_context import VARIABLE

_logger = logging.getLogger("holdfast_hooks")

_NEEDED = ("step", "train", "train_step", "forward_backward_step", "should_continue_training", "batch_generator")
"""What this uses of a trainer. torchtitan 0.3 has all of it."""
_AXES = {"pp": "pp", "dp": "batch", "cp": "cp", "tp": "tp"}
"""Axes of Holdfast, and torchtitan's names of them."""


def watch_trainer(trainer: Any) -> "TrainerWatch | None":
    """Report the steps of ``trainer`` from now on. Without an agent, return None and leave the trainer as it is.

    Args:
        trainer: a ``torchtitan.trainer.Trainer``, or an object of a subclass. Call this once on each rank, before
            ``trainer.train()``.

    Raises ConfigurationError if the agent's context is not valid.
    """
    if VARIABLE not in os.environ:
        return None
    if missing := [name for name in _NEEDED if not hasattr(trainer, name)]:
        _logger.warning("this trainer is not watched, because it has no %s: use torchtitan 0.3", missing[0])
        return None
    try:
        coordinates, loss_ranks = _coordinates(trainer), _size(trainer, "loss")
    except Exception as error:  # noqa: BLE001 - another release may name its meshes in another way
        _logger.warning("this trainer is not watched, because its meshes are not known: %r", error)
        return None
    watch = TrainerWatch(trainer, coordinates, loss_ranks)
    watch.follow()
    return watch


class TrainerWatch:
    """Follows the calls of one trainer. :func:`watch_trainer` makes it. Only the training thread uses it.

    A step begins with ``train_step()``. It ends when the trainer asks whether to continue: a checkpoint and a
    validation that are due after a step belong to it.
    """

    def __init__(self, trainer: Any, coordinates: dict[str, int], loss_ranks: int) -> None:
        device = getattr(trainer, "device", None)
        self._hooks: Hooks = holdfast_hooks.attach(
            coordinates=coordinates, device=str(device) if getattr(device, "type", "") == "cuda" else None
        )
        self._trainer = trainer
        self._is_open = False
        self._should_stop = False
        self._loss: Any = None
        self._loss_ranks = loss_ranks
        """Ranks whose losses torchtitan adds up to the loss of a step."""
        self._counts_tokens = not (coordinates["pp"] or coordinates["tp"])
        """Whether this rank reports tokens. Ranks with the same samples count the same tokens."""
        self._undo: list[Callable[[], None]] = []

    def follow(self) -> None:
        """Put this in front of the trainer's methods, until ``train()`` returns."""
        trainer = self._trainer
        self._hooks.restore()
        for name in _NEEDED[1:]:
            self._wrap(trainer, name, getattr(self, name))
        for part, name, phase in (("checkpointer", "save", Phase.CHECKPOINT), ("validator", "validate", Phase.EVAL)):
            if hasattr(getattr(trainer, part, None), name):  # without a validation there is no validator
                self._wrap(getattr(trainer, part), name, self._in_phase(phase))
        metrics: Any = getattr(trainer, "metrics_processor", None)
        if hasattr(metrics, "log_validation"):
            self._wrap(metrics, "log_validation", self.log_validation)
        if hasattr(getattr(metrics, "logger", None), "log"):  # there is one even if no logger is enabled
            self._wrap(metrics.logger, "log", self.log)
        from torchtitan.distributed import utils

        # The norm is a local name of train_step(), which logs it in some steps only. All trainers call this function.
        self._wrap(utils, "clip_grad_norm_", self.clip_grad_norm_)

    def train(self, inner: Callable[[], Any]) -> Any:
        """Train, then leave: this rank has done its work. After an error, the process reports how it ends."""
        result = inner()
        self._end()
        for undo in reversed(self._undo):
            undo()
        self._hooks.close()
        return result

    def should_continue_training(self, inner: Callable[[], bool]) -> bool:
        """End the step that is open. Return False if the trainer has no steps left, or after `holdfast stop`."""
        self._end()
        return inner() and not self._should_stop

    def train_step(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Train one step, whose number is that of steps trained before it."""
        trainer, hooks = self._trainer, self._hooks
        tokens = getattr(trainer, "ntokens_seen", 0)
        hooks.begin_step(max(hooks.next_step, trainer.step - 1))
        self._loss = None
        rate = self._learning_rate()  # now: at its end, the step sets the rate of the next one
        # If the data end inside the step, torchtitan cancels it by an exception. Then no step ends here.
        result = inner(*arguments, **options)
        self._is_open = True
        tokens = getattr(trainer, "ntokens_seen", 0) - tokens
        hooks.report(loss=self._loss, learning_rate=rate, tokens=tokens if self._counts_tokens else None)
        return result

    def batch_generator(self, inner: Callable[..., Any], data: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches, and count the time that each of them takes."""
        batches = inner(data)
        while True:
            self._hooks.enter(Phase.DATA)
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._hooks.enter(Phase.FORWARD_BACKWARD)
            yield batch

    def forward_backward_step(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run the forward and backward pass of one group of micro-batches, and add its loss to that of the step."""
        self._hooks.enter(Phase.FORWARD_BACKWARD)
        loss = inner(*arguments, **options)
        # Only ranks with the last stage of a pipeline know the loss.
        if getattr(self._trainer, "pp_has_last_stage", True):
            try:
                local = loss.detach()
                local = local.to_local() if hasattr(local, "to_local") else local
                # torchtitan adds up these losses over ranks, and Holdfast takes their mean. The product is also a
                # tensor of its own: the next replay of a CUDA graph writes a new loss into the old place.
                local = local * self._loss_ranks
                self._loss = local if self._loss is None else self._loss + local
            except Exception as error:  # noqa: BLE001 - a trainer of another kind may return anything
                _logger.debug("the loss of a step is not reported: %r", error)
        return loss

    def clip_grad_norm_(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Clip the gradients: the optimizer's phase begins here. Report their norm."""
        self._hooks.enter(Phase.OPTIMIZER)
        norm = inner(*arguments, **options)
        self._hooks.report(grad_norm=norm)
        return norm

    def log_validation(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Report the loss of a validation."""
        self._hooks.report(validation_loss=options.get("loss", arguments[0] if arguments else None))
        return inner(*arguments, **options)

    def log(self, inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Show what torchtitan hands to TensorBoard or W&B, under the same names."""
        numbers = options.get("metrics", arguments[0] if arguments else None)
        if isinstance(numbers, Mapping):
            self._hooks.log(numbers)
        return inner(*arguments, **options)

    def _learning_rate(self) -> float | None:
        """Return the rate of the first group of parameters, or None if the schedulers name none."""
        try:
            return float(next(iter(self._trainer.lr_schedulers.get_metrics().values())))
        except Exception as error:  # noqa: BLE001 - schedulers may be of another kind
            _logger.debug("the learning rate of a step is not reported: %r", error)
            return None

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._should_stop |= self._hooks.end_step()

    def _in_phase(self, phase: Phase) -> Callable[..., Any]:
        def run(inner: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            # torchtitan calls save() after each step. Calls that save nothing would hide how long a save takes.
            if phase is not Phase.CHECKPOINT or _is_due(inner, *arguments, **options):
                self._hooks.enter(phase)
            try:
                return inner(*arguments, **options)
            finally:
                self._hooks.enter(Phase.IDLE)

        return run

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        is_own = name in vars(owner)

        def call(*arguments: Any, **options: Any) -> Any:
            return around(inner, *arguments, **options)

        def undo() -> None:
            if vars(owner).get(name) is call:  # else another library has wrapped it in the meantime
                if is_own:
                    setattr(owner, name, inner)
                else:
                    delattr(owner, name)

        setattr(owner, name, call)
        self._undo.append(undo)


def main() -> None:
    """Run ``torchtitan.train`` and watch the trainer that it builds."""
    from torchtitan import train
    from torchtitan.trainer import Trainer

    if VARIABLE in os.environ:
        _watch_when_built(Trainer)
    train.main()


def _watch_when_built(trainer_class: Any) -> None:
    """Watch each trainer when its ``train()`` begins. By then a subclass has set up all parts."""
    build = trainer_class.__init__

    def build_and_wait(self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)

        def train() -> Any:
            del self.train
            watch_trainer(self)
            return self.train()

        self.train = train

    trainer_class.__init__ = build_and_wait


def _is_due(save: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    """Return whether this call of a checkpointer saves something. True if that is not known."""
    try:
        return bool(save.__self__._should_save(*arguments, **options))  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 - it is private, and not all checkpointers have it
        _logger.debug("whether a checkpoint is due is not known: %r", error)
        return True


def _mesh(trainer: Any, axis: str) -> Any:
    find = getattr(getattr(trainer, "parallel_dims", None), "get_optional_mesh", None)
    return None if find is None else find(axis)


def _size(trainer: Any, axis: str) -> int:
    mesh = _mesh(trainer, axis)
    return 1 if mesh is None else mesh.size()


def _index(trainer: Any, axis: str) -> int:
    mesh = _mesh(trainer, axis)
    return 0 if mesh is None else mesh.get_local_rank()


def _coordinates(trainer: Any) -> dict[str, int]:
    return {name: _index(trainer, axis) for name, axis in _AXES.items()}


if __name__ == "__main__":
    main()
