"""Where the edges of the wait-for graph end: strong components, those that no edge leaves, and circles."""

from holdfast_core.diagnosis.wait_for_graph import shortest_circle, strong_components, terminal_components


def test_only_what_no_edge_leaves_is_an_end() -> None:
    assert sorted(sorted(end) for end in terminal_components([[1], [2], [1], [1, 4], []])) == [[1, 2], [4]]


def test_the_shortest_circle_is_in_the_order_of_its_edges() -> None:
    edges = {0: [1, 2], 1: [3], 2: [0], 3: [0], 4: [0]}
    assert shortest_circle(0, edges.__getitem__) == [0, 2]
    assert shortest_circle(3, edges.__getitem__) == [3, 0, 1]
    assert shortest_circle(4, edges.__getitem__) == [4]
    assert shortest_circle(0, {0: [0]}.__getitem__) == [0]


def test_components_come_after_those_they_lead_to() -> None:
    components = strong_components([[1], [2], [0, 3], [4], []])
    assert [sorted(component) for component in components] == [[4], [3], [0, 1, 2]]


def test_node_without_edges_is_a_component() -> None:
    assert strong_components([[], []]) == [[0], [1]]


def test_two_circles_that_share_a_node_are_one_component() -> None:
    assert [sorted(component) for component in strong_components([[1], [0, 2], [3], [1]])] == [[0, 1, 2, 3]]


def test_long_chain_needs_no_recursion() -> None:
    length = 50_000
    components = strong_components([[node + 1] for node in range(length - 1)] + [[]])
    assert (len(components), components[0]) == (length, [length - 1])
