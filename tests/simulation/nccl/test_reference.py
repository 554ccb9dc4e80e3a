"""The exhaustive reference: dumps of four ranks written by hand, each with the ranks that they decide."""

from collections.abc import Mapping, Sequence

from tests.simulation.nccl.cases import cases
from tests.simulation.nccl.documents import Document
from tests.simulation.nccl.judge import shown_by_reference
from tests.simulation.nccl.reference import Reference

GROUPS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
Made = tuple[str, int, bool] | tuple[str, str, bool]
"""Group, number of a collective or text of a message, and whether it has ended."""


def dump(rank: int, *made: Made, status: Mapping[str, tuple[int, int]] | None = None, active: bool = False) -> Document:
    """Return the dump of a rank. ``active``: it holds pending calls only."""
    own = [name for name, members in GROUPS.items() if rank in members]
    entries = []
    numbers: dict[str, int] = {}
    for record, (group, call, ended) in enumerate(made):
        is_message = isinstance(call, str)
        if isinstance(call, int):
            numbers[group] = call
        entries.append(
            {
                "record_id": record,
                "pg_id": own.index(group),
                "process_group": [group, "any"],
                "collective_seq_id": numbers.get(group, 0),
                "p2p_seq_id": record if is_message else 0,
                "profiling_name": f"nccl:{call if is_message else 'all_reduce'}",
                "is_p2p": is_message,
                "input_sizes": [[4]],
                "state": "completed" if ended else "scheduled",
                "retired": ended,
            }
        )
    document: Document = {
        "pg_config": {name: {"name": name, "desc": "any", "ranks": str(GROUPS[name])} for name in own},
        "pg_status": {
            str(own.index(name)): {"last_enqueued_collective": str(newest), "last_completed_collective": str(done)}
            for name, (newest, done) in (status or {}).items()
        },
    }
    kept = [entry for entry in entries if not (active and entry["retired"])]
    return document | {"entries": kept} if kept else document


def decided(*dumps: Document | None, dead: Sequence[int] = ()) -> set[int]:
    return set(Reference(dict(enumerate(dumps)), dead, 4).decidable())


def waiting(rank: int) -> Document:
    return dump(rank, ("0", 1, True), ("0", 2, False))


def absent(rank: int) -> Document:
    """Return the dump of a rank that has not made the second call."""
    return dump(rank, ("0", 1, True))


def test_a_rank_that_has_not_made_a_call_is_decided() -> None:
    assert decided(waiting(0), waiting(1), absent(2), waiting(3)) == {2}


def test_two_absent_ranks_are_both_decided() -> None:
    assert decided(waiting(0), absent(1), absent(2), waiting(3)) == {1, 2}


def test_a_call_that_all_have_made_decides_nobody() -> None:
    assert decided(*map(waiting, range(4))) == set()
    assert Reference(dict(enumerate(map(waiting, range(4)))), (), 4).explanations() == [frozenset()]


def test_a_rank_without_a_dump_may_be_the_one() -> None:
    assert decided(waiting(0), waiting(1), None, waiting(3)) == set()


def test_a_dead_rank_explains_who_waits_for_it() -> None:
    assert decided(waiting(0), waiting(1), None, waiting(3), dead=[2]) == {2}


def test_a_rank_behind_another_one_is_no_cause() -> None:
    behind = dump(1, ("0", 1, True), ("1", 1, False))
    assert decided(absent(0), behind, waiting(2), waiting(3)) == {0}


def test_a_call_that_has_ended_on_all_others_shows_its_holder() -> None:
    done = ("0", 1, True), ("0", 2, True)
    assert decided(*(dump(rank, *done) for rank in range(3)), waiting(3)) == {3}
    waits = (dump(rank, *done, ("0", 3, False)) for rank in range(3))
    assert decided(*waits, dump(3, ("0", 1, True), ("0", 2, False), ("0", 3, False))) == {3}


def test_ranks_that_wait_for_each_other_are_all_candidates() -> None:
    circle = [dump(rank, (group, 1, False)) for rank, group in enumerate("1432")]
    found = Reference(dict(enumerate(circle)), (), 4).explanations()
    assert set(found) == {frozenset({rank}) for rank in range(4)}


def test_messages_are_counted_in_whole_dumps() -> None:
    receiver = dump(0, ("3", "recv 0<-1", True), ("3", "recv 0<-1", False))
    sender = dump(2, ("3", "send 1->0", True))
    assert decided(receiver, absent(1), sender, absent(3)) == {2}
    sender["entries"][0]["record_id"] = 7  # older ones are lost
    assert decided(receiver, absent(1), sender, absent(3)) == set()


def test_the_status_shows_who_is_behind_if_only_pending_calls_are_dumped() -> None:
    ahead = [dump(rank, ("0", 2, False), status={"0": (2, 1)}, active=True) for rank in (0, 1, 3)]
    behind = dump(2, status={"0": (1, 1), "2": (5, 5), "3": (5, 5)}, active=True)
    assert decided(ahead[0], ahead[1], behind, ahead[2]) == {2}
    assert decided(ahead[0], ahead[1], dump(2, active=True), ahead[2]) == set()  # it shows no numbers


def test_calls_that_do_not_fit_are_not_judged() -> None:
    other = waiting(2)
    other["entries"][1]["profiling_name"] = "nccl:broadcast"
    reference = Reference(dict(enumerate([waiting(0), waiting(1), other, absent(3)])), (), 4)
    assert reference.mismatched
    assert not reference.decidable()


def test_no_innocent_rank_is_decided() -> None:
    decidable = 0
    for case in cases(3, 150, most_ranks=8):
        ranks = shown_by_reference(case)
        assert ranks <= case.truth.culprits, case.name
        decidable += bool(ranks)
    assert decidable > 30
