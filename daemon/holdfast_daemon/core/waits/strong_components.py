"""Strongly connected components of a directed graph (Tarjan 1972), without recursion."""

from collections.abc import Sequence


def strong_components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the components of the graph whose node i has the edges i -> ``successors[i]``.

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
