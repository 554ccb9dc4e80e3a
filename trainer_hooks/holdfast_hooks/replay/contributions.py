"""What a rank gives to others: sums of the tensors with which it takes part in collectives and messages.

Only what a rank has computed counts. Outputs, and buffers that a call fills, are what others have computed. This module
imports torch: import it when it is needed.
"""

import hashlib
from collections.abc import Sequence
from itertools import groupby

import torch
from torch.distributed import get_process_group_ranks

from holdfast_hooks.progress.call_watch import CallResult, CallWatch, GroupCall, tensors_of
from holdfast_hooks.replay.culprits import ANY_SOURCE, Computed, Trace
from holdfast_hooks.replicas.pieces import as_words

_INPUTS = ("tensors", "tensor", "input", "inputs", "input_tensor", "input_tensors", "input_list")
"""Names in c10d of what a rank gives."""


class Contributions:
    """Collects what this rank computes in one run of a step.

    A ``with`` block collects its part of each call. :meth:`add` adds a part of its state.
    """

    def __init__(self) -> None:
        self._entries: list[Computed] = []
        self._sums: list[torch.Tensor] = []
        self._calls: dict[int, int] = {}
        self._watch = CallWatch(self._see)

    def __enter__(self) -> "Contributions":
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)  # type: ignore[no-untyped-call]

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor that this rank alone holds."""
        self._note(Computed(0, name), [tensor])

    def trace(self) -> Trace:
        """Return everything in order. Waits for the GPUs."""
        sums: list[int] = [0] * len(self._sums)
        for device, indices in groupby(sorted(range(len(sums)), key=self._device), key=self._device):
            places = list(indices)
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)  # calls are made on several streams
            for place, total in zip(places, torch.stack([self._sums[place] for place in places]).tolist(), strict=True):
                sums[place] = int(total)
        return Trace(self._entries, sums)

    def _device(self, place: int) -> str:
        return str(self._sums[place].device)

    def _see(self, call: GroupCall) -> CallResult:
        if call.name != "barrier":
            try:
                members, inputs = _part_of(call)
            except Exception:  # noqa: BLE001 - a call that torch has changed must not fail because it is watched
                members, inputs = [], []
            group = _number(members)
            number = self._calls.get(group, 0)
            self._calls[group] = number + 1
            kind = call.name.strip("_").removesuffix("_base")
            self._note(Computed(group, f"{kind} {number} of ranks {_listed(members)}"), inputs)
        return call.run()

    def _note(self, computed: Computed, tensors: Sequence[torch.Tensor]) -> None:
        self._entries.append(computed)
        # As the call sees them, in its stream, and before it changes them.
        sums = [total for tensor in tensors if (total := sum_of(tensor)) is not None]
        # A factor for each place: then two tensors that have changed places change the sum.
        self._sums.append(sum((total * (2 * place + 1) for place, total in enumerate(sums)), torch.tensor(0)))


def _part_of(call: GroupCall) -> tuple[list[int], list[torch.Tensor]]:
    """Return the ranks that take part in a call, and the tensors that this rank gives. A message has two ranks.

    Without a rank: it is a message whose source is not named.
    """
    group = call.process_group
    ranks, own = get_process_group_ranks(group), group.rank()
    arguments = call.arguments_by_name()
    if call.name == "send":
        return [ranks[own], ranks[arguments["dst"]]], call.tensors()
    if call.name == "recv_":
        return [ranks[arguments["src"]], ranks[own]], []
    if call.name == "recv_any_source_":
        return [], []
    if call.name == "broadcast_" and arguments["root_rank"] != own:
        return ranks, []  # the root's tensors take the place of these
    return ranks, tensors_of([value for name, value in arguments.items() if name in _INPUTS])


def sum_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the sum of a tensor's bits, read as whole numbers: int64. Any one flipped bit changes it.

    None: the tensor has no elements, or its memory is not read that way, such as that of a sparse one.
    """
    try:
        words = as_words(tensor.detach())
        words = as_words(tensor.detach().contiguous()) if words is None else words
        return words.sum() if words is not None and words.numel() else None
    except (RuntimeError, NotImplementedError):
        return None


def _number(members: Sequence[int]) -> int:
    digest = hashlib.blake2b(repr(list(members)).encode(), digest_size=7)
    return int.from_bytes(digest.digest(), "big") + ANY_SOURCE + 1 if members else ANY_SOURCE


def _listed(members: Sequence[int]) -> str:
    is_range = len(members) > 2 and list(members) == list(range(members[0], members[-1] + 1))
    if is_range:
        return f"{members[0]}-{members[-1]}"
    return ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
