"""What the stacks in a folder add to a verdict that they do not decide, and what to do if they are there already."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from holdfast_cli.analysis.dump_folder import Dumps
from holdfast_cli.analysis.host_place import place_of
from holdfast_cli.analysis.stack_text import main_thread
from holdfast_core.diagnosis.devices.causes import Cause, Kind, Place
from holdfast_core.diagnosis.devices.diagnosis_text import next_step, ranks_text

_NAMED_SHOWN = 4


def stack_reasons(cause: Cause, found: Dumps) -> Iterator[str]:
    """Yield what stacks show: of named ranks where they are, and of the suspects of an unknown cause each place."""
    for rank in cause.ranks[:_NAMED_SHOWN]:
        thread = main_thread(found.stacks.get(rank, ""))
        if thread is not None:
            function, file = thread.own_frame
            yield f"the stack of rank {rank} is there, and shows {function} ({file})"
    by_place: dict[Place, list[int]] = {}
    for rank in _looked_at(cause, found):
        by_place.setdefault(place_of(found.stacks[rank]), []).append(rank)
    for place, ranks in by_place.items():
        shown = "no place that decides" if place == Place.UNKNOWN else f"{place.value}, which does not decide"
        yield f"the stack{'s' if len(ranks) > 1 else ''} of {ranks_text(ranks)} {_show(ranks)} {shown}"


def next_of(cause: Cause, found: Dumps) -> str:
    """Return what to do next, in one line. It asks for no stack that the folder has."""
    if cause.kind == Kind.NOTHING_PENDING and found.stacks:
        without = sorted(found.dumps.keys() - found.stacks.keys())
        return (
            f"take the stacks of {ranks_text(without)}, too (py-spy dump --native)" if without else _read(found.stacks)
        )
    if cause.kind == Kind.MISSING_RANK and found.stacks.keys() >= set(cause.ranks):
        stacks = "this stack" if len(cause.ranks) == 1 else "these stacks"
        return f"read {stacks} and the log of {ranks_text(cause.ranks)}: what keeps the host from this call"
    known = _looked_at(cause, found)
    missing = tuple(rank for rank in cause.suspects if rank not in known)
    if not known:
        return next_step(cause)
    if missing:
        return next_step(replace(cause, suspects=missing))
    plain = [rank for rank in known if not _has_native_frames(found.stacks[rank])]
    if plain:
        return f"take the stacks of {ranks_text(plain)} again, with py-spy dump --native: Python frames hide waits"
    return _read(known)


def _read(ranks: Iterable[int]) -> str:
    return f"read the stacks and the logs of {ranks_text(ranks)}: what do they wait for"


def _looked_at(cause: Cause, found: Dumps) -> list[int]:
    """Return the suspects of an unknown cause whose stacks are there."""
    return [rank for rank in cause.suspects if rank in found.stacks] if cause.kind == Kind.UNKNOWN else []


def _has_native_frames(stacks: str) -> bool:
    thread = main_thread(stacks)
    return thread is not None and thread.has_native_frames


def _show(ranks: list[int]) -> str:
    return "is there, and shows" if len(ranks) == 1 else "are there, and show"
