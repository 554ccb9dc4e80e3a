"""Hashes of parameters that several ranks must hold alike. If memory is silently corrupted, one rank's hash differs.

They are taken at the end of a step, when the optimizer is done and all replicas must be equal bit by bit. Training
thread only.
"""

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.replicas.pieces import Piece, Rotation, as_words, cut
from holdfast_hooks.replicas.plain import PlainParameters
from holdfast_hooks.state.counterparts import named_parameters
from holdfast_hooks.state.sharding import is_dtensor, local_part, ranks_alike
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_proto.v1.session_pb2 import ReplicaCoverage, ReplicaHash, StepRecord

# Finds the parameters, or parts of them, that several ranks must hold alike.
#
# Only two kinds are certain: parameters that ``DistributedDataParallel`` keeps equal, and DTensors along the axes of
# their mesh on which they are replicated. Any other plain tensor may be one rank's own, or a replica: see plain.py.

if TYPE_CHECKING:
    import torch

Ranks = tuple[int, ...]


@dataclass
class HeldParameters:
    """This rank's parts of the parameters of a state."""

    nbytes: int = 0
    """Bytes of all parts."""
    sets: "dict[Ranks, dict[str, torch.Tensor]]" = field(default_factory=dict)
    """Parts that must be equal, by the ranks that hold them.

    Every rank of a set finds the same names and shapes in it. Parts of one name that differ, because they are other
    shards or other pipeline stages, are in other sets.
    """
    plain: "dict[str, torch.Tensor]" = field(default_factory=dict)
    """Trained plain tensors that other ranks may hold, too."""


def held_parameters(state: Mapping[str, Any]) -> HeldParameters:
    """Return this rank's parts of the parameters of ``state``."""
    held = HeldParameters()
    parameters = [(f"{owner}/{name}", parameter) for owner, name, parameter in named_parameters(state)]
    distributed = sys.modules.get("torch.distributed")
    is_world = distributed is not None and distributed.is_available() and distributed.is_initialized()
    wrappers = _Wrappers.find() if parameters and is_world else _Wrappers()
    may_be_replicas = distributed is not None and is_world and distributed.get_world_size() > 1
    for name, parameter in parameters:
        local, ranks = parameter, wrappers.kept_equal.get(id(parameter), ())
        if is_dtensor(parameter):
            local = local_part(parameter)[0]
            if not any(placement.is_partial() for placement in parameter.placements):
                ranks = tuple(ranks_alike(parameter))
        held.nbytes += local.nbytes
        if len(ranks) > 1 and local.numel():
            held.sets.setdefault(ranks, {})[name] = local.detach()
        elif may_be_replicas and not ranks and not wrappers.free_parameters and _is_plain(parameter):
            held.plain[name] = parameter
    return held


def _is_plain(parameter: "torch.Tensor") -> bool:
    import torch

    is_common = type(parameter) in (torch.nn.Parameter, torch.Tensor) and parameter.layout is torch.strided
    has_numbers = parameter.numel() > 0 and parameter.device.type in ("cpu", "cuda")
    return is_common and has_numbers and parameter.requires_grad


@dataclass
class _Wrappers:
    """What wrappers of modules do to parameters."""

    kept_equal: dict[int, Ranks] = field(default_factory=dict)
    """Ranks between which DistributedDataParallel keeps a parameter equal, by the parameter's id."""
    free_parameters: bool = False
    """Whether there is fully_shard, or FullyShardedDataParallel: they gather plain tensors and free their memory."""

    @classmethod
    def find(cls) -> "_Wrappers":
        """Look through all objects of the process, because people save the module and not the wrapper around it."""
        from torch.distributed import get_process_group_ranks
        from torch.nn.parallel import DistributedDataParallel

        found = cls()
        fsdp = sys.modules.get("torch.distributed.fsdp")
        sharders = () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
        for thing in gc.get_objects():
            kind = type(thing)  # and not isinstance(): that of a proxy could have side effects
            if issubclass(kind, sharders):
                found.free_parameters = True
            elif issubclass(kind, DistributedDataParallel):
                ranks = tuple(sorted(get_process_group_ranks(thing.process_group)))
                for name, parameter in thing.module.named_parameters():
                    if name not in thing.parameters_to_ignore:
                        found.kept_equal[id(parameter)] = ranks
        return found


if TYPE_CHECKING:
    import torch

BUDGET_RATIO = 0.001
"""Largest share of the training thread's time."""

_HASH_BITS = 0xFFFF_FFFF_FFFF_FFFF
_LOWEST, _HIGHEST = -16, 3
_FIRST = 0


@dataclass(frozen=True)
class ReplicaSums:
    """Sums of the pieces that were checked in one step."""

    names: tuple[str, ...]
    """Names of the pieces that other ranks must hold alike, and then of those that they may hold alike."""
    replicas: int
    """Number of pieces of the first sort."""
    sums: DeferredNumbers
    coverage: ReplicaCoverage | None = None

    def put(self, record: StepRecord) -> bool:
        """Put the hashes into the step's record (reporter thread); return False while a GPU still owes them."""
        sums = self.sums.read()
        if sums is None:
            return False
        hashes = [
            ReplicaHash(part=name, hash=int(total) & _HASH_BITS) for name, total in zip(self.names, sums, strict=True)
        ]
        record.replicas.extend(hashes[: self.replicas])
        record.plain.extend(hashes[self.replicas :])
        if self.coverage is not None:
            record.coverage.CopyFrom(self.coverage)
        return True


class CheckPace:
    """Doubles and halves the checks of a rank, so that they take at most ``budget_ratio`` of its time.

    It works in steps that are a multiple of a power of two, and on more than one portion only if it works in every
    step. So of two ranks with different paces, the slower one's steps are among the faster one's, and the two can be
    compared.
    """

    def __init__(self, budget_ratio: float) -> None:
        self._budget_ratio = budget_ratio
        self._level = _FIRST
        self._newest: tuple[int, float] | None = None

    @property
    def portions(self) -> int:
        """Number of pieces of each set to check in a step that is due; 8 at most."""
        return int(2 ** max(0, self._level))

    @property
    def every(self) -> int:
        """Number of steps from one that is due to the next."""
        return int(2 ** max(0, -self._level))

    def is_due(self, step: int) -> bool:
        """Whether to check in ``step``."""
        return step % self.every == 0

    def worked(self, step: int, *, began_s: float, ended_s: float) -> None:
        """Adapt to the time that the check in ``step`` took. The times are from a clock that only rises."""
        if self._newest is not None and step > self._newest[0]:
            step_s = (began_s - self._newest[1]) / (step - self._newest[0])
            load = (ended_s - began_s) / (self.every * step_s * self._budget_ratio)
            # Double only if twice the work would still be half the budget: otherwise the pace would swing.
            change = -1 if load > 1 else int(load < 1 / 4)
            self._level = min(_HIGHEST, max(_LOWEST, self._level + change))
        self._newest = step, began_s


class ReplicaCheck:
    """Sums some pieces of this rank's replicated parameters in each step, as many as its pace allows.

    Ranks need not agree on a pace. A piece that only some ranks checked in a step is compared between those.
    """

    def __init__(self, state: Mapping[str, Any], once: OnceLog, *, budget_ratio: float = BUDGET_RATIO) -> None:
        self._state = state
        self._once = once
        self._pace = CheckPace(budget_ratio)
        self._has_looked = False
        self._rotations: list[Rotation[Piece]] = []
        self._plain: PlainParameters | None = None
        self.compared: tuple[torch.Tensor, ...] | None = None
        """Tensors whose change on this rank alone could be seen; None: not known before the first step has ended."""

    def check(self, step: int) -> ReplicaSums | None:
        """Return the sums of the pieces of ``step`` at its end, or None if no check is due."""
        if (self._has_looked and not self.compared) or not self._pace.is_due(step):
            return None
        try:
            coverage = None if self._has_looked else self._look()
            return self._sum(step, coverage)
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            self._once.warn("replicas are not compared", repr(error))
            self._has_looked, self.compared = True, ()
            return None

    def _look(self) -> ReplicaCoverage:
        # Once. Parameters that replace these later are not compared, which is better than a false alarm.
        held = held_parameters(self._state)
        pieces = [cut(tensors, holders=str(min(ranks))) for ranks, tensors in held.sets.items()]
        self._rotations = [Rotation(of_set) for of_set in pieces if of_set]
        self._plain = PlainParameters(held.plain) if held.plain else None
        replicas = [
            tensor for of_set in held.sets.values() for tensor in of_set.values() if as_words(tensor) is not None
        ]
        self.compared = (*replicas, *(self._plain.tensors if self._plain else ()))
        self._has_looked = True
        return ReplicaCoverage(
            replica_bytes=sum(tensor.nbytes for tensor in replicas),
            plain_bytes=self._plain.nbytes if self._plain else 0,
            parameter_bytes=held.nbytes,
        )

    def _sum(self, step: int, coverage: ReplicaCoverage | None) -> ReplicaSums:
        began_s = monotonic()
        portions = self._pace.portions
        pieces = [piece for rotation in self._rotations for piece in rotation.at(step, portions)]
        plain = self._plain_sums(step, portions)
        sums = DeferredNumbers.of([*(piece.sum() for piece in pieces), *plain.values()])
        self._pace.worked(step, began_s=began_s, ended_s=monotonic())
        return ReplicaSums((*(piece.name for piece in pieces), *plain), len(pieces), sums, coverage)

    def _plain_sums(self, step: int, portions: int) -> "dict[str, torch.Tensor]":
        try:
            return self._plain.sums(step, portions) if self._plain else {}
        except (ValueError, RuntimeError) as error:
            self._once.warn("plain parameters are not compared", error)
            gone = {id(tensor) for tensor in self._plain.tensors} if self._plain else set()
            self.compared = tuple(tensor for tensor in self.compared or () if id(tensor) not in gone)
            self._plain = None
            return {}
