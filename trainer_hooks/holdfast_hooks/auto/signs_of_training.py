"""Guesses steps and phases from what torch shows: optimizers, data loaders, evaluations, saves.

An optimizer's step ends a step (step_cycle.py). A phase begins and ends with a call: a data loader's ``next`` is DATA,
an optimizer's step is OPTIMIZER, ``torch.save`` is CHECKPOINT. A batch that is fetched while gradients are off, or
``module.eval()``, begins an evaluation, which ends with the next sign of training. The rest is FORWARD_BACKWARD, and
IDLE once a data loader has no more.

All of this runs in the script's own calls. So nothing here may raise: the first error ends the guessing.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast_hooks.auto.arming import on_import, say
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.phases import Phase

# Learns which optimizers make up one step, from the order in which they step.
#
# Most scripts have one optimizer: each of its steps is a step. A script with several (the two of a GAN, Muon next to
# AdamW, one for each parameter in the backward pass) has made a step when the last of them has stepped. Which one is
# the last shows when the first one steps again. Until then, and after a change, one step may count as two, or two as
# one.

_LEAST_PATIENCE, _PATIENCE_EACH = 64, 16
"""Steps of the other optimizers, together, after which the last one of a cycle counts as one that steps no more."""
_MOST_MEMBERS = 65_536
"""Number of new optimizers after which a script is learned anew: it may make new ones all the time."""


class StepCycle:
    """The optimizers of one step. An optimizer is a number: its ``id``."""

    def __init__(self) -> None:
        self._members: dict[int, None] = {}
        """The optimizers that step in turn, in the order in which they were met."""
        self._last = 0
        self._rare: set[int] = set()
        """Optimizers that have stopped to step regularly: they end no step."""
        self._others = 0
        """Steps of other optimizers since the last one has stepped."""

    @property
    def members(self) -> int:
        """Number of optimizers that make up a step."""
        return len(self._members)

    def ends_with(self, optimizer: int) -> bool:
        """Take in that an optimizer has stepped; return whether that ends a step."""
        if optimizer == self._last:
            self._others = 0
            return True
        if optimizer not in self._members and optimizer not in self._rare:
            return self._meet(optimizer)
        self._others += 1
        if self._others <= _LEAST_PATIENCE + _PATIENCE_EACH * len(self._members):
            return False
        self._drop_last(optimizer)
        return optimizer == self._last

    def _meet(self, optimizer: int) -> bool:
        if len(self._members) >= _MOST_MEMBERS:
            self._members.clear()
            self._rare.clear()
        is_first = not self._members
        self._members[optimizer] = None
        self._last, self._others = optimizer, 0
        return is_first

    def _drop_last(self, optimizer: int) -> None:
        """Do without the last member, which has not stepped for long while ``optimizer`` and others did."""
        self._others = 0
        del self._members[self._last]
        self._rare.add(self._last)
        if optimizer in self._rare:  # it was rare, and is the one that steps now
            self._rare.remove(optimizer)
            self._members[optimizer] = None
        self._last = next(reversed(self._members))


if TYPE_CHECKING:
    from torch.optim import Optimizer

LOADERS, MODULES, SAVES = "torch.utils.data.dataloader", "torch.nn.modules.module", "torch.distributed.checkpoint"
_FEW = 8
"""More optimizers than this step within the backward pass, one for each parameter: that is no phase of its own."""
_USUAL_EVALS = 3
"""Steps in a row with a call of ``eval()`` after which such a call is part of the step, as that of a teacher is."""

# Enums' attributes would cost more than the rest of the lines that use them.
_DATA, _TRAINING, _OPTIMIZER = int(Phase.DATA), int(Phase.FORWARD_BACKWARD), int(Phase.OPTIMIZER)
_EVAL, _CHECKPOINT, _IDLE = int(Phase.EVAL), int(Phase.CHECKPOINT), int(Phase.IDLE)


class SignsOfTraining:
    """Watches one rank and tells its hooks.

    Args:
        hooks: the open hooks of this rank.
        first_step: number of the first step.
    """

    def __init__(self, hooks: Hooks, first_step: int) -> None:
        self.steps = 0
        """Number of steps that have ended."""
        self.on = False
        self._hooks = hooks
        self._enter: Callable[[int], None] = hooks.enter  # type: ignore[assignment]  # phases are whole numbers
        self._first_step = first_step
        self._begun = False
        self._phase = 0
        self._cycle = StepCycle()
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._evals: tuple[int, int] = (-1, 0)
        """Step of the newest call of ``eval()``, and the number of steps in a row that had one."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to watch. Everything that is not there (in another version of torch) is left out, with one line."""
        torch = sys.modules["torch"]
        self.on = True
        self._compiles: Callable[[], bool] = torch.compiler.is_compiling
        self._trains: Callable[[], bool] = torch.is_grad_enabled
        self._install("steps", self._watch_optimizers)
        self._install("phases of data", lambda: on_import(LOADERS, self._watch_loaders))
        self._install("evaluations", lambda: on_import(MODULES, self._watch_modules))
        self._install("saves", lambda: self._watch_save(torch, "save"))
        self._install("saves", lambda: on_import(SAVES, lambda module: self._watch_save(module, "save")))
        os.register_at_fork(after_in_child=self._forget)

    def uninstall(self) -> None:
        """End to watch, and put back what no one else has wrapped in the meantime."""
        self.on = False
        while self._undo:
            self._undo.pop()()

    @property
    def next_step(self) -> int:
        """Number of the step that follows the last one that has ended."""
        return self._first_step + self.steps

    def _forget(self) -> None:
        self.on = False  # a child that the rank has forked shares its black box

    def _install(self, what: str, install: Callable[[], None]) -> None:
        try:
            install()
        except Exception as error:  # noqa: BLE001 - whatever another torch lacks, the script continues
            say(f"{what} are not seen with this version of torch: {error!r}")

    def _give_up(self, error: Exception) -> None:
        self.on = False
        say(f"steps and phases are not seen any more, the script continues: {error!r}")

    # Steps

    def _watch_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        compiles = self._compiles

        # torch.compile follows these functions into a compiled step, and must find nothing there to compile.
        def before(optimizer: "Optimizer", args: object, kwargs: object) -> None:  # noqa: ARG001 - torch's signature
            if not compiles():
                self._before_step()

        def after(optimizer: "Optimizer", args: object, kwargs: object) -> None:  # noqa: ARG001 - as above
            if not compiles():
                self._after_step(id(optimizer))

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        self._undo.extend(handle.remove for handle in handles)

    def _before_step(self) -> None:
        if not self.on or self._cycle.members > _FEW:
            return
        try:
            self._thread = threading.get_ident()
            if not self._begun:
                self._begin()
            self._enter(_OPTIMIZER)
            self._phase = _OPTIMIZER
        except Exception as error:  # noqa: BLE001 - the script must train on
            self._give_up(error)

    def _after_step(self, optimizer: int) -> None:
        if not self.on:
            return
        try:
            if self._cycle.ends_with(optimizer):
                self._hooks.end_step()
                self.steps += 1
                self._begin()
            elif self._cycle.members <= _FEW:
                self._set(_TRAINING)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _begin(self) -> None:
        self._begun = True
        self._hooks.begin_step(self._first_step + self.steps)
        self._phase = _TRAINING

    def _set(self, phase: int) -> None:
        self._enter(phase)
        self._phase = phase

    # Phases

    def _is_training_thread(self) -> bool:
        return self.on and threading.get_ident() == self._thread

    def _watch_loaders(self, module: ModuleType) -> None:
        iterator = module._BaseDataLoaderIter  # noqa: SLF001 - no public class has the method that all loaders share
        fetch = iterator.__next__

        @functools.wraps(fetch)
        def fetch_next(loader: object) -> object:
            if self._phase == _DATA or not self._is_training_thread():  # a loader within a loader's own work
                return fetch(loader)
            self._fetches()
            try:
                batch = fetch(loader)
            except StopIteration:
                self._has_fetched(_IDLE)
                raise
            self._has_fetched(_TRAINING if self._trains() else _EVAL)
            return batch

        self._replace(iterator, "__next__", fetch, fetch_next)

    def _fetches(self) -> None:
        try:
            if not self._begun and self._trains():
                self._begin()
            self._set(_DATA)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _has_fetched(self, phase: int) -> None:
        try:
            self._set(phase)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _watch_modules(self, module: ModuleType) -> None:
        kind = module.Module
        evaluate = kind.eval

        @functools.wraps(evaluate)
        def noted_eval(model: Any) -> Any:  # noqa: ANN401 - torch's method returns the module
            if not self._compiles() and self._begun and self._is_training_thread():
                self._note_eval()
            return evaluate(model)

        self._replace(kind, "eval", evaluate, noted_eval)

    def _note_eval(self) -> None:
        step, in_row = self._evals
        if step != self.steps:
            in_row = in_row + 1 if step == self.steps - 1 else 1
            self._evals = self.steps, in_row
        if in_row < _USUAL_EVALS and self._phase in (_TRAINING, _IDLE):
            self._has_fetched(_EVAL)

    def _watch_save(self, module: ModuleType, name: str) -> None:
        save = getattr(module, name)

        @functools.wraps(save)
        def noted_save(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own
            if self._phase == _CHECKPOINT or not self._is_training_thread():
                return save(*args, **kwargs)
            before = self._phase
            self._has_fetched(_CHECKPOINT)
            try:
                return save(*args, **kwargs)
            finally:
                self._has_fetched(before)

        self._replace(module, name, save, noted_save)

    def _replace(self, owner: Any, name: str, theirs: object, ours: object) -> None:  # noqa: ANN401 - class or module
        setattr(owner, name, ours)

        def put_back() -> None:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)

        self._undo.append(put_back)
