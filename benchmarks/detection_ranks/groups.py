"""The groups of a layout, and calls in them that log themselves."""

import re
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .call_log import CallLog

AXES = ("pp", "dp", "ep", "tp")
"""Outermost first."""


def parse_layout(layout: str) -> dict[str, int]:
    """Return axis -> size of a layout such as ``pp2dp2``. Axes that it does not name have size 1."""
    named = {axis: int(size) for axis, size in re.findall(r"([a-z]+)(\d+)", layout)}
    assert named.keys() <= set(AXES), layout
    return {axis: named.get(axis, 1) for axis in AXES}


class Groups:
    """This rank's place in the layout, and its calls. Axes of size 1 make no calls."""

    def __init__(self, layout: str, log: CallLog) -> None:
        sizes = parse_layout(layout)
        self.sizes = sizes
        self.mesh: DeviceMesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self.index = {axis: self.mesh.get_local_rank(axis) for axis in sizes}
        self._log = log
        self._groups = {axis: self.mesh.get_group(axis) for axis in sizes}
        world = dist.group.WORLD
        assert world is not None
        self._groups["world"] = world
        self._counted: set[str] = set()
        self._members = {axis: sorted(dist.get_process_group_ranks(group)) for axis, group in self._groups.items()}

    def all_reduce(self, axis: str, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a tensor by its sum over an axis, and return it."""
        if len(self._members[axis]) > 1:
            entered = self._enter(axis, "all_reduce")
            dist.all_reduce(tensor, group=self._groups[axis])
            self._log.leave(entered)
        return tensor

    def reduce_scatter(self, axis: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum over an axis."""
        size = len(self._members[axis])
        if size == 1:
            return tensor
        part = torch.empty(tensor.numel() // size)
        entered = self._enter(axis, "reduce_scatter")
        dist.reduce_scatter_tensor(part, tensor, group=self._groups[axis])
        self._log.leave(entered)
        return part

    def all_gather(self, axis: str, part: torch.Tensor) -> torch.Tensor:
        """Return the parts of all ranks of an axis."""
        size = len(self._members[axis])
        if size == 1:
            return part
        whole = torch.empty(part.numel() * size)
        entered = self._enter(axis, "all_gather")
        dist.all_gather_into_tensor(whole, part, group=self._groups[axis])
        self._log.leave(entered)
        return whole

    def all_to_all(self, axis: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the parts that the ranks of an axis have for this rank."""
        if len(self._members[axis]) == 1:
            return tensor
        received = torch.empty_like(tensor)
        entered = self._enter(axis, "all_to_all")
        dist.all_to_all_single(received, tensor, group=self._groups[axis])
        self._log.leave(entered)
        return received

    def send(self, axis: str, tensor: torch.Tensor, to: int) -> None:
        """Send to the rank at an index of an axis, and wait until it is sent."""
        entered, peer = self._message(axis, "send", to)
        request = dist.isend(tensor, peer, group=self._groups[axis])
        assert request is not None
        request.wait()
        self._log.leave(entered)

    def receive(self, axis: str, shape: Sequence[int], source: int) -> torch.Tensor:
        """Return the tensor that the rank at an index of an axis sends."""
        tensor = torch.empty(shape)
        entered, peer = self._message(axis, "recv", source)
        request = dist.irecv(tensor, peer, group=self._groups[axis])
        assert request is not None
        request.wait()
        self._log.leave(entered)
        return tensor

    def _enter(self, axis: str, op: str) -> int:
        group = self._groups[axis]
        if group.group_name not in self._counted:
            # Calls before this one, which made the groups and restored the state, have numbers. So have messages.
            self._counted.add(group.group_name)
            before = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
            self._log.count_from(group.group_name, self._members[axis], before - self._log.messages(group.group_name))
        return self._log.enter(group.group_name, self._members[axis], op)

    def _message(self, axis: str, op: str, index: int) -> tuple[int, int]:
        peer = dist.get_global_rank(self._groups[axis], index)
        ends = (dist.get_rank(), peer) if op == "send" else (peer, dist.get_rank())
        return self._log.enter(self._groups[axis].group_name, ends, op), peer
