"""Decides which checkpoints stay, and on which one the next builds. It only computes; callers remove."""

from collections.abc import Mapping, Set

from holdfast_checkpoint.format.manifest import Manifest


def superfluous(
    newest: Manifest,
    manifests: Mapping[int, Manifest],
    *,
    kept: int,
    marked: Set[int],
    proven: Set[int],
    others: Set[int],
    incomplete: Set[int],
) -> tuple[int, ...]:
    """Return the steps of a history to remove once ``newest`` is committed, in the order of removal.

    * The newest ``kept`` whole checkpoints of the run in ``manifests`` (by step) stay, and so do ``marked`` ones.
    * The newest ``proven`` one stays: the newer ones may all hold a state whose loss is not finite.
    * Bases of those that stay, stay. A checkpoint is removed before its base, so that a crash in between leaves none
      that cannot be read.
    * ``incomplete`` ones have a manifest and lack files. They stay, because the files may come back, and do not count
      as kept.
    * ``others`` are steps without a readable manifest: unfinished, damaged, or moved away. They are removed together
      with the committed ones of their time.
    """
    own = {step for step, manifest in manifests.items() if manifest.run == newest.run}
    recent = {*sorted(own - incomplete)[-kept:], newest.step}
    staying = recent | (own & (marked | incomplete)) | _newest(own & (proven - incomplete))
    lost = {step for step in others if step < min(recent)} if len(recent) >= kept else set()
    removed = ((own - staying) | lost) - _bases(manifests, staying)
    return tuple(sorted(removed, reverse=True))


def outlived(
    manifests: Mapping[int, Manifest], *, marked: Set[int], proven: Set[int], others: Set[int], incomplete: Set[int]
) -> tuple[int, ...]:
    """Return the steps of an older history to remove once the present one has enough checkpoints, in that order.

    ``marked`` and ``incomplete`` ones, the newest of ``proven`` and their bases stay. ``others`` are the steps without
    a readable manifest. Callers give no ``proven`` ones once the present history has one of its own.
    """
    staying = (manifests.keys() & (marked | incomplete)) | _newest(manifests.keys() & (proven - incomplete))
    return tuple(sorted((manifests.keys() - staying - _bases(manifests, staying)) | others, reverse=True))


def _newest(steps: Set[int]) -> set[int]:
    return {max(steps)} if steps else set()


def _bases(manifests: Mapping[int, Manifest], steps: Set[int]) -> set[int]:
    return {base for step in steps for base in manifests[step].bases}


def base_step(
    manifests: Mapping[int, Manifest], step: int, *, run: str, world_size: int, generation: int, full_every: int
) -> int | None:
    """Return the step of the full checkpoint to which ``step`` should be stored as a difference.

    None if it should be a full one itself: no full one of this world and generation is before it, or ``full_every`` - 1
    checkpoints build on that already. Another generation may have other ranks, or a state from before a fallback.
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
