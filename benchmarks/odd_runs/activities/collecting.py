"""Pauses that come from memory management."""

import gc

from benchmarks.odd_runs.scene import Scene

_OBJECTS = 1_500_000
_CHUNK = 100_000


def collect(scene: Scene) -> None:
    """Collect garbage in a huge heap, again and again."""
    heap = [[number] for number in range(_OBJECTS)]
    while scene.pause.is_active():
        gc.collect()
    del heap


def allocate(scene: Scene) -> None:
    """Build large structures and drop them."""
    while scene.pause.is_active():
        cache = {number: (number, [number]) for number in range(_CHUNK)}
        cache.clear()
