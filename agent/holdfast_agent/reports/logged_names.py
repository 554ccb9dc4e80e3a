"""Chooses which rank of a node counts for each number that the script logs under a name of its own."""

from collections.abc import Iterable

from holdfast_proto.limits import MOST_LOGGED_NAMES
from holdfast_proto.v1 import common_pb2 as common


class LoggedNames:
    """Names that the ranks of one generation have logged. All ranks of a job log the same names as a rule."""

    def __init__(self) -> None:
        self._lowest: dict[str, int] = {}
        """Lowest rank that has logged a name."""

    def of(self, rank: int, numbers: Iterable[common.LoggedNumber]) -> list[common.LoggedNumber]:
        """Return those of a rank's numbers that count, with its rank: no lower rank of this node logs their names."""
        counted = []
        for number in numbers:
            known = self._lowest.get(number.name)
            if known is None and len(self._lowest) >= MOST_LOGGED_NAMES:
                continue
            if known is None or rank <= known:
                self._lowest[number.name] = number.rank = rank
                counted.append(number)
        return counted
