"""Decides, without touching anything, which checkpoints stay, and which one the next builds on."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from holdfast_proto.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class Superfluous:
    """What the commit of a checkpoint makes superfluous."""

    withdrawn: tuple[int, ...]
    """Steps that lose their manifests alone, ascending."""
    removed: tuple[int, ...]
    """Steps that go altogether, in the order of removal: what builds on another goes before it."""


def superfluous(
    newest: Manifest,
    manifests: Mapping[int, Manifest],
    *,
    kept: int,
    marked: Set[int],
    unfinished: Set[int],
    damaged: Set[int],
) -> Superfluous:
    """Return what goes once ``newest`` is committed, of ``manifests`` (by step) and of what has none.

    The newest ``kept`` of its run stay, those that are ``marked``, and what others build on. ``unfinished`` are the
    steps without a manifest, ``damaged`` those whose manifest cannot be read.
    """
    own = {step: manifest for step, manifest in manifests.items() if manifest.run == newest.run}
    # The run went back before these steps and must not jump to a future that it has left. Their shards stay,
    # because others may be saving the step again by now.
    abandoned = {s for s, m in own.items() if s > newest.step and m.generation < newest.generation}
    recent = {*sorted(own.keys() - abandoned)[-kept:], newest.step}
    staying = recent | (own.keys() & marked)
    needed = {base for manifest in manifests.values() for base in manifest.bases if manifest.step in staying}
    lost = {step for step in unfinished if step < newest.step}
    if len(recent) >= kept:
        # A manifest that cannot be read now may be readable later: it goes when its time is over.
        lost |= {step for step in damaged if step < min(recent)}
    removed = ((own.keys() - abandoned - staying) | lost) - needed
    return Superfluous(tuple(sorted(abandoned)), tuple(sorted(removed, reverse=True)))


def base_step(
    manifests: Mapping[int, Manifest], step: int, *, run: str, world_size: int, generation: int, full_every: int
) -> int | None:
    """Return the step of the full checkpoint to which ``step`` should be stored as a difference.

    None if it should be a full one itself: no other of this world and generation is before it, or ``full_every``
    less one build on that already.
    """
    before = {
        earlier: manifest
        for earlier, manifest in manifests.items()
        if earlier < step and (manifest.run, manifest.world_size, manifest.generation) == (run, world_size, generation)
    }
    base = max((earlier for earlier, manifest in before.items() if not manifest.bases), default=None)
    built_on_it = max((manifest.since_full for manifest in before.values() if base in manifest.bases), default=0)
    return base if built_on_it + 1 < full_every else None


def previous_to(manifests: Mapping[int, Manifest], step: int) -> Manifest | None:
    """Return the newest manifest before ``step``, if there is one."""
    return manifests.get(max((earlier for earlier in manifests if earlier < step), default=-1))
