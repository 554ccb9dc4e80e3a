"""Messages to people that did not reach them before the run ended."""

from pathlib import Path

from holdfast_daemon.notify.reported import load
from holdfast_proto import run_files


def undelivered_line(directory: Path, run: str, instance: str) -> str:
    """Return which channels still had messages when the daemon ended; "" if none had.

    Args:
        directory: the daemon's folder.
        run: name of the run.
        instance: instance of the run: an earlier one may have left messages, too.
    """
    queued = load(run_files.notifications(directory, run), instance).queued
    counts = [f"{len(messages)} for {channel}" for channel, messages in sorted(queued.items()) if messages]
    if not counts:
        return ""
    return (
        f"messages were not delivered: {', '.join(counts)}. The daemon's log says why; try the channels with"
        " `holdfast notify test`"
    )
