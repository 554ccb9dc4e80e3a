"""A GPU that a test drives: marks are moments of its queue, and it reaches them when the test says so."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(eq=False)
class FakeMark:
    at_s: float = 0.0
    uses: int = 0
    is_lost: bool = False


class FakeGpu:
    """Work is enqueued with :meth:`work`. ``reached_s`` is how far the GPU has come."""

    def __init__(self) -> None:
        self.queued_s = 0.0
        self.reached_s = float("inf")
        self.is_capturing = False
        self.made: list[FakeMark] = []
        self.free: list[FakeMark] = []

    def work(self, seconds: float) -> None:
        self.queued_s += seconds

    def mark(self) -> FakeMark | None:
        if self.is_capturing:
            return None
        if self.free:
            mark = self.free.pop()
        else:
            mark = FakeMark()
            self.made.append(mark)
        mark.at_s = self.queued_s
        mark.uses += 1
        return mark

    def is_past(self, mark: FakeMark) -> bool:
        return not mark.is_lost and mark.at_s <= self.reached_s

    def between_s(self, start: FakeMark, end: FakeMark) -> float:
        assert end.at_s <= self.reached_s, "read before the GPU was there"
        return end.at_s - start.at_s

    def give_back(self, marks: Iterable[FakeMark]) -> None:
        for mark in marks:
            assert mark not in self.free, "given back twice"
            self.free.append(mark)
