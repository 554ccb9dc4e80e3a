"""Finds what a checkpoint lacks that an earlier one has: tensors, bytes, ranks."""

import re
from collections.abc import Iterator

from holdfast_checkpoint.guard.damage import printable
from holdfast_checkpoint.guard.inventory import Inventory
from holdfast_checkpoint.guard.tensor_place import Role

_RANK = re.compile(r"(\d+)")


def losses(before: Inventory, now: Inventory) -> Iterator[str]:
    """Yield one text for each kind of loss. A world of another size is none, if it kept the state."""
    lost_ranks = before.ranks - now.ranks
    if _is_resharded(before, now):
        lost_ranks = frozenset()
    else:
        yield from _ranks(lost_ranks, now)
    names_before, names_now = _names(before), _names(now)
    missing = {name for name in names_before.keys() - names_now.keys() if not _is_of(name, before.ranks - now.ranks)}
    for role in (Role.WEIGHTS, Role.OPTIMIZER):
        gone = sorted(name for name in missing if names_before[name] is role)
        if gone:
            total = sum(1 for known in names_before.values() if known is role)
            which = "all" if len(gone) == total else f"{len(gone)} of"
            yield f"{which} {total} tensors of the {role} are missing, such as {printable(gone[0])}"
    less = before.nbytes(Role.WEIGHTS) - now.nbytes(Role.WEIGHTS)
    if less > 0 and not missing and not lost_ranks and not _is_resharded(before, now):
        yield f"the weights have {now.nbytes(Role.WEIGHTS)} bytes instead of {before.nbytes(Role.WEIGHTS)}"


def _ranks(lost: frozenset[str], now: Inventory) -> Iterator[str]:
    """Yield the files of ranks that are gone. A smaller world has no file of the highest ranks."""
    highest = max((_number(name) for name in now.ranks if name.startswith("rng_state")), default=-1)
    certain = sorted(name for name in lost if not name.startswith("rng_state") or _number(name) < highest)
    if certain:
        yield f"{len(certain)} of the files and folders of ranks are missing, such as {printable(certain[0])}"


def _number(name: str) -> int:
    found = _RANK.search(name)
    return int(found[1]) if found else -1


def _names(inventory: Inventory) -> dict[str, Role]:
    """Return each tensor of the state. The chunks of a tensor depend on the number of ranks, and count once."""
    found: dict[str, Role] = {}
    for name, place in inventory.places.items():
        if place.role is not Role.OTHER:
            found[name.rpartition("@")[0] or name] = place.role
    return found


def _is_of(name: str, ranks: frozenset[str]) -> bool:
    return any(part in ranks for part in name.split("/"))


def _is_resharded(before: Inventory, now: Inventory) -> bool:
    """Return whether the ranks hold other parts of the tensors than before."""
    shared = (name for name in before.places.keys() & now.places.keys() if _is_of(name, before.ranks))
    return any(before.places[name].shape != now.places[name].shape for name in shared)
