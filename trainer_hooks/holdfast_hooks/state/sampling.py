"""The random states from which a loader draws the order of its samples at the beginning of an epoch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast_hooks.state import random_states

if TYPE_CHECKING:
    import torch

_LINKS = ("batch_sampler", "sampler")
_DEEPEST = 6


class Sampling:
    """Remembers the random states at the beginning of an epoch, so that the same order can be drawn again.

    A restart in the middle of an epoch skips batches of an order. Samplers draw that order from the random states of
    the process, or from a generator of their own; both have moved on when a snapshot is taken.
    """

    def __init__(self) -> None:
        self.loader: Any = None
        """The loader of the training data."""
        self._random: dict[str, Any] = {}
        self._generators: dict[str, bytes] = {}
        self._seeds: dict[str, int] = {}
        """Seeds of accelerate's samplers, which they take from the process when they are made."""

    def note(self) -> None:
        """Remember the random states now: the loader is asked for its first batch next."""
        self._random = freeze_random()
        self.note_samplers()

    def note_samplers(self) -> None:
        """Remember the generators and seeds of the samplers now, between two epochs."""
        found = list(parts(self.loader))
        self._generators = {
            path: _bytes_of(one.generator.get_state())
            for path, one in found
            if _is_generator(getattr(one, "generator", None))
        }
        self._seeds = {path: one.initial_seed for path, one in found if _has_seed(one)}

    @property
    def has_seeds(self) -> bool:
        """Whether a sampler of accelerate draws the order, from a seed that is saved."""
        return bool(self._seeds)

    def begin_again(self) -> None:
        """Put all states back that :meth:`note` remembered."""
        if self._random:
            thaw_random(self._random)
        self.restore_samplers()

    def restore_samplers(self) -> None:
        """Put back what :meth:`note_samplers` remembered."""
        import torch

        for path, one in parts(self.loader):
            if path in self._generators:
                if one.generator is None:
                    one.generator = torch.Generator()
                one.generator.set_state(_tensor_of(self._generators[path]))
            if path in self._seeds:
                one.initial_seed = self._seeds[path]

    def state_dict(self) -> dict[str, Any]:
        """Return the remembered states."""
        return {"random": self._random, "generators": self._generators, "seeds": self._seeds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._random, self._generators, self._seeds = state["random"], state["generators"], state["seeds"]


def parts(loader: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield a loader and what decides its order, each with its path from the loader, which has none itself.

    These are the samplers, and a dataset without numbers, such as a stream. Other datasets draw nothing of the order.
    """
    yield path, loader
    for link in (*_LINKS, "dataset"):
        inner = getattr(loader, link, None)
        if inner is None or depth >= _DEEPEST or (link == "dataset" and not is_stream(inner)):
            continue
        yield from parts(inner, f"{path}.{link}", depth + 1)


def freeze_random() -> dict[str, Any]:
    """Return the random states of Python, numpy and torch, tensors as bytes."""
    return {name: _bytes_of(one) if _is_tensor(one) else one for name, one in random_states.capture().items()}


def thaw_random(frozen: dict[str, Any]) -> None:
    """Restore what :func:`freeze_random` returned."""
    random_states.restore({name: _tensor_of(one) if isinstance(one, bytes) else one for name, one in frozen.items()})


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _has_seed(part: object) -> bool:
    return type(getattr(part, "initial_seed", None)) is int


def is_stream(dataset: object) -> bool:
    """Return whether the samples of a dataset have no numbers."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def _is_generator(value: object) -> bool:
    import torch

    return isinstance(value, torch.Generator)


def _bytes_of(state: "torch.Tensor") -> bytes:
    return bytes(state.cpu().numpy().tobytes())


def _tensor_of(state: bytes) -> "torch.Tensor":
    import torch

    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
