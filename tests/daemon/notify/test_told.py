from pathlib import Path

from holdfast_daemon.notify.told import Told, load, save, told_text
from tests.daemon.notify.test_delivery import message


def test_what_was_told_survives_and_only_this_user_may_read_it(tmp_path: Path) -> None:
    told = Told("i", {"0001-dead-rank": "open"}, 3, True, message().notices, {"slack": (message(1), message(2))})
    file = tmp_path / "told.json"
    save(file, told_text(told))
    assert load(file, "i") == told
    assert file.stat().st_mode & 0o777 == 0o600
    assert load(file, "another") == Told("another")


def test_only_the_newest_incidents_are_remembered_and_older_ones_are_not_new() -> None:
    told = Told("i")
    for number in range(1, 1501):
        told.note(f"{number:04}-straggler", "noted")
    assert len(told.statuses) == 1000
    assert told.forgotten == 500
    assert told.knows("0001-straggler")
    assert told.knows("0501-straggler")
    assert not told.knows("1501-straggler")
    assert not told.knows("odd")


def test_a_disk_that_refuses_the_file_costs_nothing_but_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, "i") == Told("i")
