from dataclasses import replace
from typing import Any

from holdfast_daemon.notify.grouping import Grouping
from holdfast_daemon.notify.message import MOST_NOTICES, Culprit, Notice, as_json, from_json


def notice(number: int = 0, **changes: Any) -> Notice:
    usual = Notice(
        event="incident", status="open", key="", kind="dead_rank", what="", next="next", unix_s=1.0, see="see"
    )
    return replace(usual, **{"key": f"k{number}", "what": f"what {number}", **changes})


def closing(number: int) -> Notice:
    return notice(number, event="recovery", status="resolved")


def grouping() -> Grouping:
    return Grouping("run", "host", 60.0)


def begun() -> Grouping:
    """Return a group whose first notice was sent at 100 s."""
    group = grouping()
    group.add(notice(0))
    assert keys(group.take(100.0)) == ["k0"]
    return group


def keys(message: Any) -> list[str]:
    return [one.key for one in message.notices] if message is not None else []


def test_the_first_is_sent_immediately_and_the_next_ones_together() -> None:
    group = begun()
    for number in range(1, 6):
        group.add(notice(number, kind="straggler" if number == 3 else "dead_rank"))
        assert group.take(100.0 + number) is None
    assert group.take(159.9) is None
    message = group.take(160.0)
    assert keys(message) == ["k1", "k2", "k3", "k4", "k5"]
    assert message is not None
    assert message.title == "[open] run: 5 incidents (4 dead rank, 1 straggler), newest: what 5"
    assert group.take(1000.0) is None


def test_a_recovery_does_not_wait_for_the_interval_of_its_incident() -> None:
    group = begun()
    group.add(closing(0))
    assert keys(group.take(101.0)) == ["k0"]
    group.add(notice(1))
    group.add(closing(1))
    assert group.take(102.0) is None
    assert keys(group.take(161.0)) == ["k1"]  # the recovery replaces its incident


def test_the_end_takes_everything_with_it_in_order() -> None:
    group = begun()
    group.add(notice(1))
    group.add(notice(9, event="end", status="finished", kind="", key="run"))
    assert keys(group.take(100.1)) == ["k1", "run"]


def test_a_flood_is_bounded_and_what_is_left_out_is_counted() -> None:
    group = begun()
    for number in range(3000):
        group.add(notice(number))
    message = group.take(200.0)
    assert message is not None
    assert (len(message.notices), message.left_out) == (MOST_NOTICES, 3000 - MOST_NOTICES)
    assert message.newest.key == "k2999"
    assert f"{3000 - MOST_NOTICES} older notices are left out." in message.text


def test_what_waits_is_sent_when_it_is_the_last_chance() -> None:
    group = begun()
    group.add(notice(1))
    assert keys(group.take(100.0, is_last=True)) == ["k1"]
    assert group.take(100.0, is_last=True) is None


def test_a_message_survives_json() -> None:
    group = grouping()
    group.add(notice(3, culprits=(Culprit(1, "node-0", 17), Culprit(2)), step=7))
    message = group.take(1.0)
    assert message is not None
    data = as_json(message)
    assert from_json(data) == message
    assert data["notices"][0]["ranks"] == [1, 2]
    assert data["notices"][0]["culprits"][0] == {"rank": 1, "node": "node-0", "pid": 17}
    assert "rank 1 (node-0, pid 17), rank 2, step 7" in message.text
    del data["notices"][0]["culprits"]  # as an earlier version has written it
    assert from_json(data).newest.ranks == (1, 2)
