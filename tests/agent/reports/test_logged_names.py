from holdfast_agent.reports.logged_names import LoggedNames
from holdfast_proto.limits import MOST_LOGGED_NAMES
from holdfast_proto.v1.common_pb2 import LoggedNumber


def counted(names: LoggedNames, rank: int, *logged: str) -> list[tuple[str, int]]:
    return [(number.name, number.rank) for number in names.of(rank, [LoggedNumber(name=name) for name in logged])]


def test_of_several_ranks_that_log_a_name_the_lowest_counts() -> None:
    names = LoggedNames()
    assert counted(names, 3, "loss") == [("loss", 3)]
    assert counted(names, 2, "loss", "only/2") == [("loss", 2), ("only/2", 2)]
    assert counted(names, 3, "loss", "only/3") == [("only/3", 3)]
    assert counted(names, 2, "loss") == [("loss", 2)]


def test_beyond_the_limit_a_new_name_is_left_out_and_known_ones_go_on() -> None:
    names = LoggedNames()
    first = [f"name-{index}" for index in range(MOST_LOGGED_NAMES)]
    assert len(counted(names, 0, *first)) == MOST_LOGGED_NAMES
    assert counted(names, 1, "more") == []
    assert counted(names, 0, "more", "name-5") == [("name-5", 0)]
