"""Groups of different dumps are one group by name and members, and members that no dump names are a guess."""

from collections.abc import Mapping, Sequence

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_core.diagnosis.devices.diagnosis import group_keys, guessed_groups
from holdfast_core.diagnosis.wait_for_graph import GroupKey
from holdfast_proto.v1.recorder_pb2 import RecorderDump
from tests.support.recorder_documents import Document


def dumps_of(groups: Mapping[int, Mapping[str, Sequence[int]]]) -> dict[int, RecorderDump]:
    """Return dumps in which each rank has made one call in each of its groups."""
    found = {}
    for rank, of_rank in groups.items():
        document = Document(dict(of_rank))
        for name in of_rank:
            document.call(group=name)
        found[rank] = from_document(document.document())
    return found


def keys_of(groups: Mapping[int, Mapping[str, Sequence[int]]], world_size: int = 4) -> dict[int, list[GroupKey]]:
    return group_keys(dumps_of(groups), world_size)


def test_one_name_for_different_groups_makes_different_keys() -> None:
    assert keys_of({0: {"7": (0, 1)}, 2: {"7": (2, 3)}}) == {0: [("7", (0, 1))], 2: [("7", (2, 3))]}


def test_members_that_one_dump_lacks_come_from_another() -> None:
    assert keys_of({0: {"7": (0, 1)}, 1: {"7": ()}, 2: {"7": (2, 3)}})[1] == [("7", (0, 1))]


def test_the_world_has_all_ranks() -> None:
    assert keys_of({0: {"0": ()}, 1: {"0": ()}}) == {0: [("0", (0, 1, 2, 3))], 1: [("0", (0, 1, 2, 3))]}


def test_other_groups_without_members_have_those_that_show_calls() -> None:
    assert keys_of({0: {"7": ()}, 3: {"7": ()}}) == {0: [("7", (0, 3))], 3: [("7", (0, 3))]}


def test_a_group_whose_dump_shows_nothing_of_it_has_this_rank_alone() -> None:
    silent = from_document(Document({"7": ()}).without_status().document() | {"pg_config": {"7": {"ranks": "[]"}}})
    assert group_keys(dumps_of({0: {"7": ()}, 1: {"7": ()}}) | {3: silent}, 4)[0] == [("7", (0, 1))]
    assert group_keys({3: silent}, 4) == {3: [("7", (3,))]}


def test_a_status_alone_shows_that_a_rank_is_in_a_group() -> None:
    status = from_document(
        Document({"7": ()}).call(group="7").document(entries=False) | {"pg_config": {"7": {"ranks": "[]"}}}
    )
    assert status.groups[0].has_status
    assert group_keys(dumps_of({0: {"7": ()}}) | {3: status}, 4)[0] == [("7", (0, 3))]


def test_the_world_is_known_by_its_name_or_its_description() -> None:
    named_otherwise = from_document(Document({"world": ()}).call(group="world").document())
    named_otherwise.groups[0].description = "default_pg"
    assert group_keys({0: named_otherwise}, 3) == {0: [("world", (0, 1, 2))]}
    undescribed = from_document(Document({"0": ()}).call().document())
    undescribed.groups[0].description = ""
    assert group_keys({0: undescribed}, 3) == {0: [("0", (0, 1, 2))]}


def test_own_members_count_more_than_those_of_others() -> None:
    assert keys_of({0: {"7": (0, 1)}, 1: {"7": (1, 2)}})[1] == [("7", (1, 2))]


def test_of_two_groups_of_one_name_that_fit_neither_is_taken() -> None:
    """Not even for the world."""
    assert keys_of({0: {"0": (0, 3)}, 1: {"0": (1, 3)}, 3: {"0": ()}})[3] == [("0", (0, 1, 3))]


def test_only_members_that_no_dump_names_are_a_guess() -> None:
    dumps = dumps_of({0: {"0": (), "7": (0, 1), "8": ()}, 1: {"0": (), "7": ()}})
    keys = group_keys(dumps, 2)
    assert guessed_groups(dumps, keys, (0, 1)) == {("8", (0,))}
    assert guessed_groups(dumps, keys, ()) == {("0", (0, 1)), ("8", (0,))}
