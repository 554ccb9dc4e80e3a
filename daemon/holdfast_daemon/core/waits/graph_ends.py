"""Where the edges of a directed graph end: what both searches of the wait-for graph stand on.

Hosts and devices give different evidence, and so different edges. From there on the question is the same: which nodes
does no edge leave, and round which circle do the edges lead?
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence


def terminal_components(successors: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the strong components that no edge leaves. Node i has the edges i -> ``successors[i]``."""
    components = strong_components(successors)
    component_of = [0] * len(successors)
    for i, component in enumerate(components):
        for node in component:
            component_of[node] = i
    for i, component in enumerate(components):
        if all(component_of[to] == i for node in component for to in successors[node]):
            yield component


def shortest_circle(start: int, successors: Callable[[int], Iterable[int]]) -> list[int]:
    """Return a shortest circle of edges through ``start``, in their order; ``start`` alone if there is none."""
    came_from: dict[int, int] = {}
    queue = deque([start])
    while queue and start not in came_from:  # a breadth-first search reaches ``start`` again by a shortest way
        node = queue.popleft()
        for to in successors(node):
            if to not in came_from:
                came_from[to] = node
                queue.append(to)
    path = [start]
    while start in came_from and came_from[path[-1]] != start:
        path.append(came_from[path[-1]])
    return [start, *reversed(path[1:])]


def strong_components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components of a graph (Tarjan 1972, without recursion).

    Linear in nodes and edges. A component comes after every component that it leads to.
    """
    search = _Search(successors)
    for node in range(len(successors)):
        if search.found_at[node] < 0:
            search.run(node)
    return search.components


class _Search:
    def __init__(self, successors: Sequence[Sequence[int]]) -> None:
        self.components: list[list[int]] = []
        self.found_at = [-1] * len(successors)
        self._successors = successors
        self._low = [0] * len(successors)
        self._open: list[int] = []
        self._is_open = [False] * len(successors)
        self._found = 0

    def run(self, start: int) -> None:
        self._find(start)
        path = [(start, iter(self._successors[start]))]
        while path:
            node, rest = path[-1]
            for successor in rest:
                if self.found_at[successor] < 0:
                    self._find(successor)
                    path.append((successor, iter(self._successors[successor])))
                    break
                if self._is_open[successor]:
                    self._low[node] = min(self._low[node], self.found_at[successor])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    self._low[parent] = min(self._low[parent], self._low[node])
                self._close(node)

    def _find(self, node: int) -> None:
        self.found_at[node] = self._low[node] = self._found
        self._found += 1
        self._open.append(node)
        self._is_open[node] = True

    def _close(self, node: int) -> None:
        if self._low[node] < self.found_at[node]:
            return
        component: list[int] = []
        while not component or component[-1] != node:
            component.append(self._open.pop())
            self._is_open[component[-1]] = False
        self.components.append(component)
