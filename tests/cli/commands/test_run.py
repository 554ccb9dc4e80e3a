"""The line about messages that people did not get."""

from pathlib import Path

from holdfast_cli.commands.run import undelivered_line
from holdfast_daemon.notify.message import Message, Notice
from holdfast_daemon.notify.reported import Reported, reported_text
from holdfast_proto import run_files


def message() -> Message:
    notice = Notice(event="end", status="finished", key="k", what="it ended", next="Nothing.", unix_s=1.0, see="x")
    return Message(run="r", host="h", title="it ended", sent_unix_s=1.0, notices=(notice,))


def test_messages_that_still_wait_are_counted_by_channel(tmp_path: Path) -> None:
    queued = {"slack": (message(), message()), "webhook": (message(),), "email": ()}
    run_files.notifications(tmp_path, "r").write_text(reported_text(Reported("i", queued=queued)))
    line = undelivered_line(tmp_path, "r", "i")
    assert line.startswith("messages were not delivered: 2 for slack, 1 for webhook. The daemon's log says why")
    assert undelivered_line(tmp_path, "r", "another start of the run") == ""


def test_a_run_that_notified_nobody_says_nothing(tmp_path: Path) -> None:
    assert undelivered_line(tmp_path, "r", "i") == ""
