"""The state before a step, as it is needed to compute the step again. Training thread only.

Its tensors come from the snapshot in the slot that was taken at the end of the step before, straight into the live
tensors: no further memory is needed, and no owner loads anything. What is small is kept here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from holdfast_hooks.gpu_work import gpu_of
from holdfast_hooks.replay.contributions import Contributions
from holdfast_hooks.replay.culprits import Trace
from holdfast_hooks.restore.fit import differences
from holdfast_hooks.snapshots.slot_layout import as_tensor
from holdfast_hooks.state import bucket_order, own_state, random_states
from holdfast_hooks.state.counterparts import named_parameters
from holdfast_hooks.state.encoding import Image, Stateful, TensorPart, decode_state, encode_state
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.state.sharding import is_dtensor, local_part
from holdfast_proto.snapshot import Slot, StateTree, TensorEntry


class UnsuitableStepError(Exception):
    """This step cannot be computed again. The message says why, and what to change."""


class StepState:
    """The state of a rank before a step.

    Args:
        slot: holds the snapshot of the step before.
        own: parts of the hooks that a step may change.

    Raises UnsuitableStepError.
    """

    def __init__(self, state: Mapping[str, Stateful], slot: Slot, own: OwnStates) -> None:
        self._state = state
        self._own = own
        self.image = _encode(state)
        self._slot = slot
        self._entries = _entries_of(slot, self.image)
        self._parameters = [(f"{owner}/{name}", parameter) for owner, name, parameter in named_parameters(state)]
        if any(parameter.grad is not None for _, parameter in self._parameters):
            raise UnsuitableStepError(
                "gradients are left from before: end the function with zero_grad(), which sets them to None"
            )
        if bucket_order.has_stateful_hook():
            raise UnsuitableStepError("a communication hook of DDP has a state, which is not part of the rank's state")
        again = _addresses(_encode(state))
        self._copies = {name for name, address in _addresses(self.image).items() if again.get(name) != address}
        """Tensors that state_dict() copies. They cannot be put back, so a step must not change them."""
        self._buffers = {place: (buffer, buffer.detach().clone()) for place, buffer in _buffers(state)}
        self._gpu = gpu_of(parameter for _, parameter in self._parameters)
        self._random = random_states.capture(self._gpu)
        self._own_states = {random_states.KEY: own_state.capture(own)}
        self._counted: list[str] = []
        """Objects without tensors that the step changes, such as the scale of a loss."""

    def changed(self) -> str:
        """Return the first tensor that is not what the snapshot has; empty if there is none."""
        live, saved = Contributions(), Contributions()
        for part, entry in self._kept():
            live.add(part.name, part.local)
            saved.add(part.name, self._saved(entry))
        trace = live.trace()
        index = trace.first_difference(saved.trace())
        return "" if index is None else trace.name_of(index)

    def trace_after(self, found: Contributions) -> Trace:
        """Return what a run has computed: what it gave, the state after the step, and gradients that are left."""
        for part in _encode(self._state).parts:
            found.add(f"state after the step: {part.name}", part.local)
        for name, parameter in self._parameters:
            if (gradient := parameter.grad) is not None:
                found.add(f"gradient of {name}", local_part(gradient)[0] if is_dtensor(gradient) else gradient)
        return found.trace()

    def check_after(self) -> None:
        """Check after the step that it can be undone. Raises UnsuitableStepError; nothing is changed."""
        after = _encode(self._state)
        addresses, addresses_before = _addresses(after), _addresses(self.image)
        if addresses.keys() != addresses_before.keys():
            raise UnsuitableStepError("the step has made or removed tensors of the state")
        for one, other in zip(self.image.parts, after.parts, strict=True):
            if one.name in self._copies:
                problem = "" if torch.equal(one.local, other.local) else "is a copy in state_dict()"
            else:
                problem = "" if addresses[one.name] == addresses_before[one.name] else "was replaced"
            if problem:
                raise UnsuitableStepError(f"the step has changed {one.name}, which {problem} and cannot be put back")
        if {place for place, _ in _buffers(self._state)} != self._buffers.keys():
            raise UnsuitableStepError("the step has made or removed buffers of a module")
        before = dict(_objects(self.image.tree))
        changed = [name for name, tree in _objects(after.tree) if tree != before.get(name)]
        with_tensors = {part.name.partition("/")[0] for part in after.parts}
        if unsuitable := [name for name in changed if name in with_tensors]:
            raise UnsuitableStepError(
                f"the function changes numbers in {', '.join(unsuitable)} that are no tensors: call what counts, such "
                "as a scheduler's step(), after the function"
            )
        self._counted = changed

    def put_back(self) -> None:
        """Undo the step."""
        with torch.no_grad():
            for part, entry in self._kept():
                part.local.detach().copy_(self._saved(entry))
            for (module, name), (buffer, kept) in self._buffers.items():
                buffer.copy_(kept)
                setattr(module, name, buffer)  # the step may have put another one in its place
        for _, parameter in self._parameters:
            parameter.grad = None
        before = dict(_objects(self.image.tree))
        for name in self._counted:
            self._state[name].load_state_dict(decode_state(before[name], _no_tensor))
        own_state.restore(self._own, self._own_states)
        random_states.restore(self._random, self._gpu)

    def _kept(self) -> Iterator[tuple[TensorPart, TensorEntry]]:
        """Yield the tensors that can be put back, and their places in the slot."""
        for part in self.image.parts:
            entry = self._entries[part.name]
            if entry.nbytes and part.name not in self._copies:
                yield part, entry

    def _saved(self, entry: TensorEntry) -> torch.Tensor:
        return as_tensor(self._slot.buffer, entry, entry.offset)


def _encode(state: Mapping[str, Stateful]) -> Image:
    return encode_state({name: stateful.state_dict() for name, stateful in state.items()})


def _entries_of(slot: Slot, image: Image) -> dict[str, TensorEntry]:
    """Return the entries of the slot by name. Raises UnsuitableStepError if they are not those of the state."""
    entries = {entry.name: entry for entry in slot.meta().tensors}
    found = differences((entry for entry in entries.values() if not entry.name.startswith(_RANDOM)), image)
    if found:
        raise UnsuitableStepError(f"the snapshot of the step before is of another state: {found[0]}")
    return entries


def _buffers(state: Mapping[str, Any]) -> Iterator[tuple[tuple[torch.nn.Module, str], torch.Tensor]]:
    """Yield the buffers of modules by their places. Some are no part of their state."""
    for value in state.values():
        for module in getattr(value, "modules", lambda: ())():
            yield from (((module, name), buffer) for name, buffer in module.named_buffers(recurse=False))


def _addresses(image: Image) -> dict[str, int]:
    return {part.name: part.local.data_ptr() for part in image.parts}


def _objects(tree: StateTree) -> list[tuple[str, StateTree]]:
    """Return the encoded state of each object by its name."""
    assert isinstance(tree, dict)
    return [(name, part) for name, part in tree["dict"]]


def _no_tensor(kind: str, index: int) -> object:
    raise LookupError(f"{kind} {index} in a state without tensors")


_RANDOM = f"{random_states.KEY}/"
