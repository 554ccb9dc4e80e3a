"""The strong components of the wait-for graph."""

from holdfast_daemon.core.waits.strong_components import strong_components


def test_components_come_after_those_they_lead_to() -> None:
    components = strong_components([[1], [2], [0, 3], [4], []])
    assert [sorted(component) for component in components] == [[4], [3], [0, 1, 2]]


def test_node_without_edges_is_a_component() -> None:
    assert strong_components([[], []]) == [[0], [1]]


def test_two_circles_that_share_a_node_are_one_component() -> None:
    components = strong_components([[1], [0, 2], [3], [1]])
    assert [sorted(component) for component in components] == [[0, 1, 2, 3]]


def test_long_chain_needs_no_recursion() -> None:
    length = 50_000
    components = strong_components([[node + 1] for node in range(length - 1)] + [[]])
    assert len(components) == length
    assert components[0] == [length - 1]
