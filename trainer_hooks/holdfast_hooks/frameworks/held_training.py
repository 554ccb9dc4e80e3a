"""A training loop under Accelerate: its epochs and batches, the steps in them, and where it continues."""

import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import holdfast_hooks
from holdfast_hooks.phases import Phase
from holdfast_hooks.state.sampling import Sampling, freeze_random, is_stream, thaw_random

_log = logging.getLogger("holdfast_hooks")

Batch = TypeVar("Batch")


class LoopPosition:
    """Where a loop is in its data, as a Stateful."""

    def __init__(self, accelerator: Any, sampling: Sampling) -> None:
        self._accelerator = accelerator
        self.sampling = sampling
        self.epoch = 0
        """Epoch of the next batch."""
        self.batches = 0
        """Batches of that epoch that this rank has trained on."""
        self.steps = 0
        """Optimizer steps that were trained."""
        self.iteration = 0
        """Number of passes over the loader, from which Accelerate makes the seed of the order."""
        self.batch_samples = 0
        """Samples in one batch of all ranks; 0 if the loader does not tell."""
        self.left_out = 0
        """Steps whose data are left out before the next step."""
        self.is_restored = False
        self._saved_batch_samples = 0
        self._most_batches = 1
        """Most batches that a step has taken. A loop that accumulates by itself does not tell Accelerate."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "batch_samples": self.batch_samples,
            "steps": self.steps,
            "iteration": self.iteration,
            "micro_steps": self._accelerator.step,
            "left_out": self.left_out,
            "most_batches": self._most_batches,
            "sampling": self.sampling.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.epoch, self.batches, self.steps = state["epoch"], state["batches"], state["steps"]
        self.iteration, self._saved_batch_samples = state["iteration"], state["batch_samples"]
        self._accelerator.step = state["micro_steps"]
        self.left_out, self._most_batches = state.get("left_out", 0), state.get("most_batches", 1)  # or an older state
        self.sampling.load_state_dict(state["sampling"])
        self.is_restored = True

    def skip(self, steps: int) -> None:
        """Leave out the data of the next ``steps`` steps."""
        self.left_out += steps

    def end_step(self, batches: int) -> None:
        """Count a step that has taken ``batches`` batches."""
        self.steps += 1
        self._most_batches = max(self._most_batches, batches)

    def drop(self, iterator: Iterator[Any]) -> None:
        """Fetch the batches that are left out, at most to the end of the epoch: the others come in the next."""
        told = self._accelerator.gradient_accumulation_steps
        due = dropped = told if told > 1 else self._most_batches
        while self.left_out and dropped == due:
            dropped = sum(1 for _ in itertools.islice(iterator, due))
            self.batches += dropped
            self.left_out -= min(dropped, 1)  # the last step of an epoch may have fewer batches

    def fit(self, batch_samples: int) -> None:
        """Count the batches of the position in those of the loader, whose size or ranks may differ now."""
        if self._saved_batch_samples and batch_samples and self._saved_batch_samples != batch_samples:
            self.batches = self.batches * self._saved_batch_samples // batch_samples


class HeldTraining:
    """The epochs and batches of a loop. :func:`holdfast_hooks.frameworks.accelerate.hold` makes it.

    A step is what ends with a change of the parameters: one batch, or the batches that
    ``accelerator.accumulate()`` gathers. It ends when the loop asks for the next batch. The last step of an epoch ends
    when the loop asks for the next epoch, so that a restart repeats what the script does at the end of an epoch.
    """

    def __init__(self, accelerator: Any, optimizers: list[Any], sampling: Sampling) -> None:
        self.hooks: holdfast_hooks.Hooks
        """For ``hooks.report(loss=...)`` and ``hooks.enter(...)``."""
        self.position = LoopPosition(accelerator, sampling)
        self.stopped = False
        """Whether Holdfast has asked the loop to end here, by `holdfast stop`."""
        self.before_pass: Callable[[], None] = lambda: None
        """Is called before each pass over the loader, and raises what speaks against it."""
        self._accelerator = accelerator
        self._random: dict[str, Any] | None = None
        """The random states of the restored step, until training has begun."""
        self._resumes = False
        """Whether the next pass over the loader continues one that was trained in part."""
        self._loader: Any = None
        self._open = False
        self._changed = False
        self._batches_of_step = 0
        self._sees_steps = all(hasattr(optimizer, "register_step_post_hook") for optimizer in optimizers)
        """Whether all optimizers are torch's. Those of DeepSpeed do not show when they step."""
        if self._sees_steps:
            for optimizer in optimizers:
                optimizer.register_step_pre_hook(self._note_optimizer)
                optimizer.register_step_post_hook(self._note_change)

    def start(self, hooks: "holdfast_hooks.Hooks", until: int | None) -> None:
        """Restore the state, if Holdfast has one."""
        self.hooks = hooks
        hooks.restore(until=until)
        if self.position.is_restored:
            self._random, self._resumes = freeze_random(), True

    @property
    def step(self) -> int:
        """Number of the optimizer step that is open, or else of the next one."""
        return self.position.steps

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs to train, up to ``count - 1``, and leave training after the last one."""
        position = self.position
        while position.epoch < count and not self.stopped:
            if not position.batches:
                self._thaw()
            yield position.epoch
            if self.stopped:
                break
            position.epoch, position.batches = position.epoch + 1, 0
            position.iteration = getattr(self._loader, "iteration", 0)
            position.sampling.note_samplers()
            if self._changed or (self._open and not self._sees_steps):
                self._end()
        self.hooks.close()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of this epoch that are not trained yet. Call it once in each epoch.

        Args:
            loader: the loader of the training data, as ``accelerator.prepare()`` returned it.
        """
        self.before_pass()
        position = self.position
        position.sampling.loader = self._loader = loader
        position.batch_samples = _batch_samples(loader)
        resumes, self._resumes = self._resumes, False
        if resumes and hasattr(loader, "set_epoch"):
            loader.set_epoch(position.iteration)
        if resumes and position.batches:
            left, iterator = self._continued(loader)
        else:
            if resumes:
                position.sampling.restore_samplers()
            position.iteration = getattr(loader, "iteration", 0)
            position.sampling.note()
            position.batches = 0
            self._begin()
            left, iterator = loader, iter(loader)
        while True:
            try:
                batch = self._fetch(iterator)
            except StopIteration:
                break
            if not self._open:
                self._begin()
            self._batches_of_step += 1
            self.hooks.enter(Phase.FORWARD_BACKWARD)
            yield batch
            position.batches += 1
            if self._is_step_over() and not getattr(left, "end_of_dataloader", False):
                self._end()
                if self.stopped:
                    return
                self._begin()
        if left is not loader and hasattr(loader, "set_epoch"):
            loader.set_epoch(position.iteration + 1)  # the loader itself has not been iterated

    def _continued(self, loader: Any) -> tuple[Any, Iterator[Any]]:
        """Return a loader of the batches that this pass has left, and its iterator."""
        position = self.position
        position.fit(position.batch_samples)
        position.sampling.begin_again()
        self._begin()
        if _has_batches_by_number(loader):
            left = self._accelerator.skip_first_batches(loader, position.batches)
            return left, iter(left)
        _forget_iterator(loader, position.sampling, position.iteration)
        iterator = iter(loader)
        for _ in itertools.islice(iterator, position.batches):
            pass
        self._thaw()  # the loader has fetched as much as it had when the state was saved
        return loader, iterator

    def _fetch(self, iterator: Iterator[Batch]) -> Batch:
        """Return the next batch that is not left out."""
        try:
            self.position.drop(iterator)
            return next(iterator)
        finally:
            self._thaw()

    def _thaw(self) -> None:
        """Put the random states of the restored step back, once."""
        if self._random is not None:
            thaw_random(self._random)
            self._random = None

    def _is_step_over(self) -> bool:
        # A scaler that finds an overflow leaves the optimizer's step out. The step of the loop is over all the same.
        is_blind = not self._sees_steps or self._accelerator.scaler is not None
        return self._changed or (is_blind and self._accelerator.sync_gradients)

    def _note_optimizer(self, *_: Any) -> None:
        self.hooks.enter(Phase.OPTIMIZER)

    def _note_change(self, *_: Any) -> None:
        self._changed = True

    def _begin(self) -> None:
        # A step whose data come after those that are left out begins behind them: the training may end before that.
        if not self._open and not self.position.left_out:
            self._open = True
            self.hooks.begin_step(self.position.steps)
        self.hooks.enter(Phase.DATA)

    def _end(self) -> None:
        self.position.end_step(self._batches_of_step)
        self._open, self._changed, self._batches_of_step = False, False, 0
        self.stopped = self.hooks.end_step()


def _batch_samples(loader: Any) -> int:
    try:
        return getattr(loader, "total_batch_size", 0) or 0
    except TypeError:  # Accelerate multiplies a size that a batch sampler need not have
        return 0


def _has_batches_by_number(loader: Any) -> bool:
    """Return whether ``skip_first_batches()`` of Accelerate finds the batches that are left.

    It does for a DataLoader whose samples have numbers, and loads none of the others. Of a DataLoader that dispatches
    the batches of rank 0 it skips too few. For one of torchdata it is not meant, and one with persistent workers would
    draw other random numbers. Samples without numbers have to be loaded in any case.
    """
    from accelerate.data_loader import DataLoaderDispatcher
    from torch.utils.data import DataLoader, IterableDataset

    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and not loader.persistent_workers
        and type(loader) is not DataLoaderDispatcher
        and not _is_of_torchdata(_base(loader))
    )


def _forget_iterator(loader: Any, sampling: Sampling, iteration: int) -> None:
    """Have a loader of torchdata make its iterator again: Accelerate had it make one in ``prepare()``.

    The state that such a loader has under Accelerate is that of another batch, so it is not used.

    Args:
        loader: the loader, of any kind.
        sampling: the restored states of its samplers.
        iteration: number of the pass over the loader that continues. The first one may have drawn its order in
            ``prepare()``, before anything could be noted.
    """
    base = _base(loader)
    if base is loader or not _is_of_torchdata(base):
        return
    base.load_state_dict({})
    follows = sampling.has_seeds and base.num_workers == 0
    if iteration == 0 and not follows and not is_stream(base.dataset):
        _log.warning(
            "held.batches(): the rest of the first epoch may have other samples: StatefulDataLoader drew their order"
            " before hold(). Set use_stateful_dataloader=False to continue with the same ones"
        )


def _is_of_torchdata(loader: Any) -> bool:
    torchdata = sys.modules.get("torchdata.stateful_dataloader")
    return torchdata is not None and isinstance(loader, torchdata.StatefulDataLoader)


def _base(loader: Any) -> Any:
    """Return the loader that Accelerate has wrapped, or the loader itself."""
    return getattr(loader, "base_dataloader", loader)
