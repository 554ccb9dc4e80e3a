"""What waits to be reported: bounded, and never in the training thread's way."""

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Backlog(Generic[Item]):
    """A bounded queue from one thread, as a rule the training thread, to the reporter. When full the oldest item goes.

    Without a lock: every step on the deque is atomic, and only the thread that appends counts.
    """

    def __init__(self, capacity: int) -> None:
        self._items: deque[Item] = deque()
        self._capacity = capacity
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        """Add an item (the one thread that does so)."""
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
        # None if the reporter took everything since the length was read: nothing is lost then.
        if self.pop() is not None:
            self.dropped_total += 1
