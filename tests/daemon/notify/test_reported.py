from pathlib import Path

from holdfast_daemon.notify.reported import Reported, load, reported_text
from tests.daemon.notify.test_delivery import message


def test_what_was_reported_survives(tmp_path: Path) -> None:
    reported = Reported(
        "i", {"0001-dead-rank": "open"}, 3, True, message().notices, {"slack": (message(1), message(2))}
    )
    file = tmp_path / "reported.json"
    file.write_text(reported_text(reported))
    assert load(file, "i") == reported
    assert load(file, "another") == Reported("another")


def test_only_the_newest_incidents_are_remembered_and_older_ones_are_not_new() -> None:
    reported = Reported("i")
    for number in range(1, 1501):
        reported.note(f"{number:04}-straggler", "noted")
    assert (len(reported.statuses), reported.forgotten) == (1000, 500)
    assert reported.knows("0001-straggler")
    assert reported.knows("0501-straggler")
    assert not reported.knows("1501-straggler")
    assert not reported.knows("odd")


def test_a_disk_that_refuses_the_file_costs_nothing_but_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, "i") == Reported("i")
