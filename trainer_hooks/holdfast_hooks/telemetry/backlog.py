"""The bounded queue of steps and snapshots to report. It never makes the training thread wait."""

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Backlog(Generic[Item]):
    """A bounded queue from one thread, mostly the training thread, to the reporter. If full, it drops the oldest item.

    It needs no lock: each operation on the deque is atomic, and only the thread that appends counts dropped items.
    """

    def __init__(self, capacity: int) -> None:
        self._items: deque[Item] = deque()
        self._capacity = capacity
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        """Add an item (from one thread only)."""
        if len(self._items) >= self._capacity:
            self._drop_oldest()
        self._items.append(item)

    def pop(self) -> Item | None:
        """Remove and return the oldest item, or None (reporter thread)."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def _drop_oldest(self) -> None:
        # None if the reporter has taken everything since the length was read. Then nothing is lost.
        if self.pop() is not None:
            self.dropped_total += 1
