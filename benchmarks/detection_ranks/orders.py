"""What the benchmark asks of all ranks while they train: a file that it replaces, read in every step."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast_proto.atomic_file import replace_file

FOLDER_VARIABLE = "DETECTION_FOLDER"
FIRST_STEP_VARIABLE = "DETECTION_FIRST_STEP_S"
_FILE = "orders.json"


@dataclass(frozen=True)
class Order:
    """Something to do in one step."""

    step: int = -1
    what: str = ""
    """``eval``, ``checkpoint``: stay in that phase; ``duplicate``: train again on samples of an earlier step."""
    rank: int = -1
    """Of whom; -1: everybody."""
    seconds: float = 0.0


def give(folder: Path, order: Order) -> None:
    """Replace the order."""
    replace_file(folder / _FILE, json.dumps(asdict(order)).encode())


class Orders:
    """Read by one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / _FILE
        self._rank = rank
        self._seen_ns = -1
        self._order = Order()

    def of(self, step: int) -> Order:
        """Return what this rank is to do in a step: an order for another one says nothing."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return Order()
        if changed_ns != self._seen_ns:
            self._order, self._seen_ns = Order(**json.loads(self._path.read_text())), changed_ns
        mine = self._order.step == step and self._order.rank in (-1, self._rank)
        return self._order if mine else Order()
