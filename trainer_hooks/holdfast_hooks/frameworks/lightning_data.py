"""Position of a Lightning fit in its training data, saved and found again.

Lightning saves a position only for loaders that have a state. With any other loader, a resumed epoch begins with the
batches that it has trained already. Here, the epoch's iterator is made again from the random states that it was made
from, and the batches that were fetched are fetched once more and dropped.
"""

from dataclasses import dataclass, field
from typing import Any

from holdfast_hooks.state import random_states


@dataclass
class EpochData:
    """How the iterator of one epoch was made, and how far it is."""

    at_iter: dict[str, Any] = field(default_factory=dict)
    """Random states just before the iterator was made."""
    at_first: dict[str, Any] = field(default_factory=dict)
    """Random states just before the first batch was fetched. Samplers draw their order then."""
    offset: int = 0
    """The fetcher's count of batches at that moment."""

    def begin_iterator(self, fit_loop: Any) -> None:
        """Note that the epoch's iterator is made next."""
        self.at_iter = capture(fit_loop)

    def begin_epoch(self, fit_loop: Any, fetcher: Any) -> None:
        """Note that the epoch's first batch is fetched next."""
        self.at_first = capture(fit_loop)
        self.offset = fetcher.fetched

    def state_dict(self, fit_loop: Any) -> dict[str, Any]:
        """Return the position after the batches that the fetcher has handed out."""
        fetcher = fit_loop._data_fetcher
        return {
            "at_iter": self.at_iter,
            "at_first": self.at_first,
            "offset": self.offset,
            "fetched": 0 if fetcher is None else fetcher.fetched,
            "loaders": [loader.state_dict() for loader in loaders(fit_loop)] if _uses_states(fit_loop) else [],
        }

    def resume(self, fit_loop: Any, fetcher: Any, saved: dict[str, Any]) -> None:
        """Bring the fetcher of a resumed epoch to the saved position. The samplers know their epoch by now."""
        self.at_iter, self.at_first, self.offset = saved["at_iter"], saved["at_first"], saved["offset"]
        restore(fit_loop, self.at_iter)
        # Lightning itself would load the states earlier, while the samplers still have the order of the first epoch.
        for loader, state in zip(loaders(fit_loop), saved["loaders"], strict=False):
            loader.load_state_dict(state)
        iter(fetcher)
        restore(fit_loop, self.at_first)
        for _ in range(0 if saved["loaders"] else saved["fetched"] - self.offset):
            next(fetcher)
        # Lightning adds the batches before a resume to the count, so that it knows the last one.
        fetcher.fetched = saved["fetched"]
        if fetcher.length is not None:
            fetcher.done = fetcher.fetched >= fetcher.length


def resume_between_epochs(fit_loop: Any, saved: dict[str, Any]) -> None:
    """Load the states of loaders whose next epoch may depend on them. torchdata's draws from the random states."""
    for loader, state in zip(loaders(fit_loop), saved["loaders"], strict=False):
        if not _is_of_torchdata(loader):
            loader.load_state_dict(state)


def loaders(fit_loop: Any) -> list[Any]:
    """Return the training loaders; none before Lightning has set them up."""
    combined = fit_loop._combined_loader
    return [] if combined is None else list(combined.flattened)


def _uses_states(fit_loop: Any) -> bool:
    """Whether each loader can go back to its position by itself, exactly.

    torchdata's loader cannot with samples by number: if its sampler has no state, it draws another order. And of a
    loader without a length, Lightning has fetched a batch in advance.
    """
    found, fetcher = loaders(fit_loop), fit_loop._data_fetcher
    return bool(found) and all(map(_is_exact, found)) and fetcher is not None and fetcher.length is not None


def _is_exact(loader: Any) -> bool:
    draws = _is_of_torchdata(loader) and hasattr(getattr(loader, "dataset", None), "__getitem__")
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") and not draws


def _is_of_torchdata(loader: Any) -> bool:
    return type(loader).__module__.startswith("torchdata.")


def capture(fit_loop: Any) -> dict[str, Any]:
    """Return the random states of the process, and those of the generators that the loaders have."""
    return {
        "process": random_states.capture(_gpu(fit_loop)),
        "loaders": [generator.get_state() for generator in _generators(loaders(fit_loop))],
    }


def restore(fit_loop: Any, states: dict[str, Any]) -> None:
    """Restore what :func:`capture` returned. Generators of loaders that are not set up yet are left out."""
    random_states.restore(states["process"], _gpu(fit_loop))
    for generator, state in zip(_generators(loaders(fit_loop)), states["loaders"], strict=False):
        generator.set_state(state)


def _generators(found: list[Any]) -> list[Any]:
    """Return each generator that the loaders or their samplers draw from, once, in the loaders' order."""
    owners = []
    for loader in found:
        batch_sampler = getattr(loader, "batch_sampler", None)
        owners += [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    generators = [getattr(owner, "generator", None) for owner in owners]
    return list({id(one): one for one in generators if hasattr(one, "get_state")}.values())


def _gpu(fit_loop: Any) -> int | None:
    device = fit_loop.trainer.strategy.root_device
    return device.index if device.type == "cuda" else None
