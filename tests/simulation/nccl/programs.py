"""Random but realistic training programs: data, tensor, pipeline, context and expert parallel, and mixes of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.nccl.actions import (
    Action,
    Capture,
    Collective,
    Group,
    Kernel,
    Message,
    Messages,
    NewGroups,
    Program,
    Python,
    Replay,
    Sync,
    Wait,
)

LAYOUTS = ("ddp", "fsdp", "hsdp", "tp", "pp", "pp_unbatched", "3d", "3d_experts", "cp", "ep", "graph")
WORLD = 0
Dimensions = list[tuple[int, ...]]
"""Groups by dimension of the mesh."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The choices that all ranks of a program share."""

    layout: str
    data: int
    tensor: int
    pipeline: int
    steps: int
    layers: int
    microbatches: int
    sync_every: int
    """The host reads the loss every N steps, so it runs ahead in between."""
    sharded: bool
    batched: bool
    messages_in_world: bool
    kernel_s: float
    odd_calls: bool
    """Whether there are uneven gathers, coalesced calls and barriers."""
    hashed_names: bool
    world_norm: bool
    """Whether each step ends with a collective of the world."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.data * self.tensor * self.pipeline


def random_shape(chance: random.Random, layout: str, most_ranks: int = 64) -> Shape:
    """Draw the degrees and habits of a layout."""
    size = chance.choice([size for size in (4, 4, 4, 4, 8, 8, 8, 8, 16, 16, 32, 64) if size <= most_ranks])
    tensor = pipeline = 1
    if layout in ("tp", "cp", "ep", "hsdp"):
        tensor = chance.choice([degree for degree in (2, 4, 8) if degree <= size])
    elif layout in ("pp", "pp_unbatched"):
        pipeline = chance.choice([degree for degree in (2, 4) if degree <= size])
    elif layout in ("3d", "3d_experts"):
        size = max(size, 8)
        tensor, pipeline = 2, chance.choice((2, 2, 4)) if size > 8 else 2
    small = size <= 16
    return Shape(
        layout=layout,
        data=size // tensor // pipeline,
        tensor=tensor,
        pipeline=pipeline,
        steps=chance.randint(3, 6) if small else 2,
        layers=chance.randint(2, 4) if small else 2,
        microbatches=chance.choice((2, 3, 4)) if small else 2,
        sync_every=chance.choice((1, 1, 2, 4)),
        sharded=layout in ("fsdp", "hsdp") or (layout != "ddp" and chance.random() < 0.4),
        batched=layout != "pp_unbatched" and (layout not in ("3d", "3d_experts") or chance.random() < 0.8),
        messages_in_world=pipeline > 1 and chance.random() < 0.2,
        kernel_s=chance.choice((0.0005, 0.005, 0.05)),
        odd_calls=chance.random() < 0.4,
        hashed_names=chance.random() < 0.3,
        world_norm=chance.random() < 0.8,
    )


def random_program(seed: int, layout: str | None = None, most_ranks: int = 64) -> Program:
    """Return a healthy program. The same seed gives the same program."""
    chance = random.Random(f"program {seed}")
    shape = random_shape(chance, layout or chance.choice(LAYOUTS), most_ranks)
    return build(shape, seed)


def build(shape: Shape, seed: int) -> Program:
    """Write the program of each rank of a shape."""
    groups = [Group("0", "default_pg", tuple(range(shape.world_size)))]
    dimensions: Dimensions = []
    own: list[dict[str, int]] = [{"world": WORLD} for _ in range(shape.world_size)]
    for dimension, lists in _meshes(shape).items():
        indices = []
        for members in lists:
            index = len(groups)
            name = f"{random.Random(f'{seed} {dimension} {members}').getrandbits(64):x}" if shape.hashed_names else ""
            groups.append(Group(name or str(index), f"mesh_{dimension}", tuple(members)))
            indices.append(index)
            for rank in members:
                own[rank][dimension] = index
        dimensions.append(tuple(indices))
    ranks = [
        list(_Rank(shape, rank=rank, groups=groups, own=own[rank], dimensions=dimensions, seed=seed).actions())
        for rank in range(shape.world_size)
    ]
    return Program(groups, ranks, shape.layout)


def _meshes(shape: Shape) -> dict[str, list[list[int]]]:
    """Return the member lists of each dimension that has more than one rank."""

    def at(stage: int, replica: int, shard: int) -> int:
        return (stage * shape.data + replica) * shape.tensor + shard

    data, tensor, pipeline = range(shape.data), range(shape.tensor), range(shape.pipeline)
    meshes = {
        "dp": [[at(s, r, t) for r in data] for s in pipeline for t in tensor],
        "tp": [[at(s, r, t) for t in tensor] for s in pipeline for r in data],
        # Only the first and the last stage are in it, so the ids of later groups differ between ranks.
        "emb": [[at(0, r, t), at(shape.pipeline - 1, r, t)] for r in data for t in tensor],
        "pp": [[at(s, r, t) for s in pipeline] for r in data for t in tensor],
        "ep": [[at(s, r, t) for r in data for t in tensor] for s in pipeline],
    }
    if shape.layout in ("ddp", "fsdp", "graph"):
        return {}  # the world is the group of the data
    has = {"emb": shape.pipeline > 2, "ep": shape.layout == "3d_experts"}
    return {name: lists for name, lists in meshes.items() if len(lists[0]) > 1 and has.get(name, True)}


class _Rank:
    """Writes the actions of one rank."""

    def __init__(
        self, shape: Shape, *, rank: int, groups: list[Group], own: dict[str, int], dimensions: Dimensions, seed: int
    ) -> None:
        self.shape, self.rank, self.groups, self.own, self.dimensions = shape, rank, groups, own, dimensions
        self.chance = random.Random(f"rank {seed} {rank}")  # times only: the calls are the same on all ranks
        self.stage = rank // (shape.data * shape.tensor)
        self.data = own.get("dp", WORLD if shape.data > 1 and not dimensions else None)
        self._handles = 0

    def actions(self) -> Iterator[Action]:
        for indices in self.dimensions:
            yield Python(0.001 * self.chance.random())
            yield NewGroups(indices)
        yield Python(0.005 * self.chance.random())
        yield self._collective(WORLD, "broadcast", 64)
        if self.shape.odd_calls:
            yield self._collective(WORLD, "all_reduce_barrier", 1, blocks_host=True)
        for step in range(self.shape.steps):
            yield from self._step(step)
        yield Sync("synchronize")

    def _step(self, step: int) -> Iterator[Action]:
        yield Python(0.002 * self.chance.random(), "data")
        if self.shape.layout == "graph" and step >= 2:
            yield from self._replayed_step(first=step == 2)
        else:
            if self.shape.pipeline > 1:
                yield from self._one_forward_one_backward()
            else:
                for _ in range(2 if self.shape.layout == "tp" else 1):
                    yield from self._pass(False)
                    yield from self._pass(True)
            yield from self._gradients()
        if self.shape.world_norm:
            yield self._collective(WORLD, "all_reduce", 1)
        yield Kernel(self._kernel_s())
        if self.shape.odd_calls and step % 2:
            yield from self._odd_calls()
        if (step + 1) % self.shape.sync_every == 0:
            yield Sync("item")
        yield Python(0.001 * self.chance.random())

    def _pass(self, backward: bool) -> Iterator[Action]:
        """Yield the calls of the layers, forward or backward."""
        layers, gathered = self.shape.layers, None
        sharded = self.shape.sharded and self.data is not None and self.shape.pipeline == 1
        for layer in range(layers):
            if sharded and self.data is not None:
                gathered = gathered or self._asynchronous(self.data, "_all_gather_base", 256 + layer)
                if layer == 0:
                    yield gathered
                following = (
                    self._asynchronous(self.data, "_all_gather_base", 257 + layer) if layer + 1 < layers else None
                )
                if following:
                    yield following  # prefetched: the next layer's parameters come while this one computes
                yield self._wait(gathered)
                gathered = following
            yield Kernel(self._kernel_s())
            yield from self._layer(layer)
            if sharded and backward and self.data is not None:
                yield self._asynchronous(self.data, "_reduce_scatter_base", 256 + layer)

    def _layer(self, layer: int) -> Iterator[Action]:
        group = self.own.get("tp")
        if group is None:
            return
        if self.shape.layout == "cp":
            yield from self._ring(group)
        elif self.shape.layout == "ep":
            yield from self._experts(group)
        elif self.shape.layout != "hsdp":
            for _ in range(2):
                yield self._collective(group, "all_reduce", 128 + layer)
                yield Kernel(self._kernel_s())
            if "ep" in self.own:
                yield from self._experts(self.own["ep"])
        yield Python(0.0002 * self.chance.random())

    def _experts(self, group: int) -> Iterator[Action]:
        for _ in range(2):
            call = self._all_to_all(group)
            yield call
            yield self._wait(call)
            yield Kernel(self._kernel_s())

    def _gradients(self) -> Iterator[Action]:
        calls: list[Collective] = []
        if self.data is not None and not (self.shape.sharded and self.shape.pipeline == 1):
            for bucket in range(3):
                calls.append(self._asynchronous(self.data, "all_reduce", 1000 + bucket))
                yield calls[-1]
                yield Kernel(self._kernel_s())
        if self.shape.layout == "hsdp":
            calls.append(self._asynchronous(self.own["tp"], "all_reduce", 900))
            yield calls[-1]
        for call in calls:
            yield self._wait(call)
        if "emb" in self.own:
            yield self._collective(self.own["emb"], "all_reduce", 77)

    def _odd_calls(self) -> Iterator[Action]:
        members = len(self.groups[WORLD].members)
        uneven = self._collective(WORLD, "ALLGATHER_coalesced", 5)
        uneven.coalesced = ("_broadcast_oop",) * min(members, 4)
        if self.shape.layers % 2:
            uneven.handle = self._new_handle()
        yield uneven
        yield self._wait(uneven)
        yield self._collective(WORLD, "reduce_scatter_tensor_coalesced", 48)
        yield self._collective(WORLD, "gather", 3)
        yield self._collective(WORLD, "broadcast", 9)
        yield self._collective(WORLD, "all_reduce_barrier", 1, blocks_host=True)

    def _replayed_step(self, *, first: bool) -> Iterator[Action]:
        calls = tuple(self._collective(WORLD, "all_reduce", 1000 + bucket) for bucket in range(2))
        if first:
            yield Capture(calls, self._collective(WORLD, "allreduce_coalesced", 40))
        yield Replay(calls, self._kernel_s())

    def _one_forward_one_backward(self) -> Iterator[Action]:
        """Yield 1F1B with the combined steps of Megatron-LM's schedule, which cannot deadlock with rendezvous."""
        shape = self.shape
        stride = shape.data * shape.tensor
        before = self.rank - stride if self.stage else None
        after = self.rank + stride if self.stage < shape.pipeline - 1 else None
        warm_up = min(shape.pipeline - self.stage - 1, shape.microbatches)
        steady = shape.microbatches - warm_up
        for _ in range(warm_up):
            yield from self._exchange(receives=(before,))
            yield from self._pass(False)
            yield from self._exchange(sends=(after,))
        if steady:
            yield from self._exchange(receives=(before,))
        for index in range(steady):
            yield from self._pass(False)
            yield from self._exchange(sends=(after,), receives=(after,))
            yield from self._pass(True)
            yield from self._exchange(sends=(before,), receives=(before,) if index + 1 < steady else ())
        for _ in range(warm_up):
            yield from self._exchange(receives=(after,))
            yield from self._pass(True)
            yield from self._exchange(sends=(before,))

    def _exchange(self, sends: tuple[int | None, ...] = (), receives: tuple[int | None, ...] = ()) -> Iterator[Action]:
        parts = [Message(True, peer, 512) for peer in sends if peer is not None]
        parts += [Message(False, peer, 512) for peer in receives if peer is not None]
        if not parts:
            return
        # Without batches both ends must order the two directions alike: the lower rank sends first.
        parts.sort(key=lambda part: part.is_send != (part.peer > self.rank))
        group = WORLD if self.shape.messages_in_world else self.own["pp"]
        yield from self._messages(group, parts, self.shape.batched)

    def _ring(self, group: int) -> Iterator[Action]:
        members = self.groups[group].members
        at = members.index(self.rank)
        parts = [Message(True, members[(at + 1) % len(members)], 64), Message(False, members[at - 1], 64)]
        yield from self._messages(group, parts, True)
        yield Kernel(self._kernel_s())

    def _messages(self, group: int, parts: list[Message], batched: bool) -> Iterator[Action]:
        lists = [tuple(parts)] if batched else [(part,) for part in parts]
        calls = [Messages(group, part, batched, self._new_handle()) for part in lists]
        yield from calls
        yield Wait(tuple(call.handle for call in calls))

    def _collective(self, group: int, op: str, numel: int, *, blocks_host: bool = False) -> Collective:
        members = self.groups[group].members
        whole = ((numel * len(members),),)
        inputs: tuple[tuple[int, ...], ...] = ((numel,),)
        outputs = inputs
        if "all_gather" in op or "ALLGATHER" in op:
            outputs = whole
        elif "reduce_scatter" in op:
            inputs = whole
        elif op == "gather":  # only the root lists what it receives
            outputs = ((numel,),) * len(members) if members[0] == self.rank else ((0,),)
        return Collective(group, op, inputs, outputs, (op, numel), blocks_host=blocks_host)

    def _asynchronous(self, group: int, op: str, numel: int) -> Collective:
        call = self._collective(group, op, numel)
        call.handle = self._new_handle()
        return call

    def _all_to_all(self, group: int) -> Collective:
        """Return an uneven all_to_all: its sizes differ between healthy ranks."""
        sizes = [((self.chance.randint(20, 90), 16),) for _ in range(2)]
        return Collective(group, "all_to_all", sizes[0], sizes[1], ("all_to_all",), handle=self._new_handle())

    def _wait(self, call: Collective) -> Wait:
        return Wait(() if call.handle is None else (call.handle,))

    def _new_handle(self) -> int:
        self._handles += 1
        return self._handles

    def _kernel_s(self) -> float:
        return self.shape.kernel_s * (0.5 + self.chance.random())
