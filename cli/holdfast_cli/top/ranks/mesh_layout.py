"""Lays the ranks of a mesh out in lines of cells, by their places."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_cli.top.ranks.oddity import JudgedRank
from holdfast_cli.views.clean_text import one_line

_LARGEST_BLOCK = 16
"""Largest axis whose ranks stand together, with a gap after them."""


@dataclass(frozen=True)
class MeshLine:
    """One line: a heading, or cells of ranks with gaps."""

    heading: str = ""
    cells: tuple[int | None, ...] = ()
    """Index of a rank, or None for a gap."""

    @property
    def ranks(self) -> list[int]:
        """Indices of the ranks."""
        return [cell for cell in self.cells if cell is not None]


def axes_of(ranks: Sequence[JudgedRank]) -> list[tuple[str, int]]:
    """Return the axes with more than one place, and their sizes, from the one that changes last to the fastest one.

    Empty if a rank's place is not known, as before the ranks have said hello.
    """
    places = [dict(rank.view.coordinates) for rank in ranks]
    if not places or any(place.keys() != places[0].keys() for place in places):
        return []
    sizes = {axis: max(place[axis] for place in places) + 1 for axis in places[0]}
    # The rank that is 1 on one axis and 0 on all others is as far from rank 0 as the axis changes slowly.
    first: dict[str, int] = {}
    for rank, place in zip(ranks, places, strict=True):
        moved = [axis for axis, index in place.items() if index]
        if len(moved) == 1 and place[moved[0]] == 1:
            first.setdefault(moved[0], rank.number)
    wide = [axis for axis, size in sizes.items() if size > 1]
    return [(axis, sizes[axis]) for axis in sorted(wide, key=lambda axis: -first.get(axis, 0))]


def lay_out(ranks: Sequence[JudgedRank], axes: Sequence[tuple[str, int]], width: int) -> list[MeshLine]:
    """Return lines of at most ``width`` columns. ``ranks``: by number. One block for each place on the slowest axis."""
    if not ranks:
        return []
    if len(axes) < 2:
        return _wrapped(range(len(ranks)), width, block=8)
    outer, size = axes[0]
    block = axes[-1][1] if axes[-1][1] <= _LARGEST_BLOCK else 8
    sections: list[list[int]] = [[] for _ in range(size)]
    for index, rank in enumerate(ranks):
        sections[rank.view.coordinates[outer]].append(index)
    lines: list[MeshLine] = []
    for place, section in enumerate(sections):
        lines.append(MeshLine(heading=f"{one_line(outer)}{place}"))
        lines += _wrapped(section, width, block)
    return lines


def _wrapped(indices: Sequence[int], width: int, block: int) -> list[MeshLine]:
    """Return the cells in whole blocks, as many a line as fit; one block if not even one fits."""
    per_line = max(1, (width + 1) // (block + 1)) * block
    lines = []
    for start in range(0, len(indices), per_line):
        cells: list[int | None] = []
        for offset, index in enumerate(indices[start : start + per_line]):
            if offset and offset % block == 0:
                cells.append(None)
            cells.append(index)
        lines.append(MeshLine(cells=tuple(cells)))
    return lines
