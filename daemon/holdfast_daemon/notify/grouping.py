"""Groups notices into messages, so that many incidents are few messages. Pure: time is an argument."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast_daemon.notify.message import MOST_NOTICES, Message, Notice, shortened

_MOST_WAITING = 1000
_CLOSING = ("resolved", "failed")


class Grouping:
    """The notices of one run that no message contains yet.

    The first notice is due immediately. Those that follow within ``min_interval_s`` wait and become one message. The
    end of an incident has an interval of its own, so that a recovery need not wait for the interval that its incident
    began. The end of the run, and a failure, are always due, together with all that waits.
    """

    def __init__(self, run: str, host: str, min_interval_s: float) -> None:
        self._run = run
        self._host = host
        self._min_interval_s = min_interval_s
        self._waiting: dict[str, Notice] = {}
        self._left_out = 0
        self._next_s = {True: float("-inf"), False: float("-inf")}
        """Whether a notice closes an incident -> earliest time of the next message for such notices."""
        self._is_urgent = False

    @property
    def waiting(self) -> tuple[Notice, ...]:
        """Notices that wait, the oldest first."""
        return tuple(self._waiting.values())

    def add(self, notice: Notice) -> None:
        """Take in a notice. It replaces one with the same key that still waits."""
        self._waiting.pop(notice.key, None)
        if len(self._waiting) >= _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._left_out += 1
        self._waiting[notice.key] = notice
        self._is_urgent |= notice.event in ("failure", "end")

    def take(self, now_s: float, *, is_last: bool = False) -> Message | None:
        """Return the message that is due, with all notices that wait; None if none is. ``is_last``: wait no longer."""
        closing = {notice.status in _CLOSING for notice in self._waiting.values()}
        is_due = is_last or self._is_urgent or any(now_s >= self._next_s[kind] for kind in closing)
        if not closing or not is_due:
            return None
        for kind in closing:
            self._next_s[kind] = now_s + self._min_interval_s
        notices = self.waiting
        message = message_of(self._run, self._host, now_s, notices, left_out=self._left_out)
        self._waiting.clear()
        self._left_out, self._is_urgent = 0, False
        return message


def message_of(run: str, host: str, now_s: float, notices: Iterable[Notice], *, left_out: int = 0) -> Message:
    """Return one message with notices, the newest last."""
    every = tuple(notices)
    kept = every[-MOST_NOTICES:]
    return Message(
        run=run,
        host=host,
        title=_title(run, every),
        sent_unix_s=now_s,
        notices=kept,
        left_out=left_out + len(every) - len(kept),
    )


def late_message(messages: Sequence[Message], now_s: float, status_now: Callable[[str], str]) -> Message:
    """Return one message in the place of those that could not be sent for a while, the oldest first.

    ``status_now`` returns the present status of the incident with a key, or "". Of several notices about one incident,
    the newest is left. An incident that is over by now calls nobody: its notice says so. Notices that still need a
    person come last, because the last one gives a message its title and status.
    """
    oldest_s = min(message.sent_unix_s for message in messages)
    newest: dict[str, Notice] = {}
    unannounced = set()
    for message in messages:
        for notice in message.notices:
            if notice.key not in newest and notice.event == "incident":
                unannounced.add(notice.key)
            newest.pop(notice.key, None)
            newest[notice.key] = notice
    notices = [_as_it_is_now(notice, key in unannounced, status_now(key)) for key, notice in newest.items()]
    if len(messages) == 1 and tuple(notices) == messages[0].notices:
        return messages[0]
    notices.sort(key=_need)
    left_out = sum(message.left_out for message in messages)
    made = message_of(messages[0].run, messages[0].host, now_s, notices, left_out=left_out)
    late_s = max(1.0, now_s - oldest_s)
    title = _title(made.run, tuple(notices), f"up to {late_s / 60:.0f} min late: ")
    return replace(made, title=title, late_s=round(late_s, 1))


def _need(notice: Notice) -> int:
    """Return how much a notice needs a person: 2 is the most."""
    if not notice.kind or notice.status in ("open", "failed"):
        return 2
    return int(notice.status != "resolved")


def _as_it_is_now(notice: Notice, is_unannounced: bool, status: str) -> Notice:
    """Return a late notice. If its incident was over before anybody could act, the notice says that alone.

    ``is_unannounced``: no message about the incident was sent before.
    """
    is_overtaken = notice.status in ("open", "noted") and status == "resolved"
    if not (is_overtaken or (notice.status == "resolved" and is_unannounced)):
        return notice
    identity = notice.key.rpartition("/")[2]
    return replace(
        notice,
        event="recovery",
        status="resolved",
        what=shortened(f"Incident {identity}, recovered meanwhile: {notice.what}"),
        next="Nothing.",
    )


def _title(run: str, notices: tuple[Notice, ...], before: str = "") -> str:
    newest = notices[-1]
    if len(notices) == 1 or not newest.kind:  # the end of a run is no incident
        return f"[{newest.status}] {run}: {before}{newest.what}"
    incidents = Counter(notice.kind.replace("_", " ") for notice in notices if notice.kind)
    number = sum(incidents.values())
    parts = ", ".join(f"{count} {kind}" for kind, count in incidents.most_common(4))
    more = f" ({parts}{', ...' if len(incidents) > 4 else ''})" if len(incidents) > 1 else f" ({parts})"
    counted = f"{number} incident{'' if number == 1 else 's'}{more}"
    return f"[{newest.status}] {run}: {before}{counted}, newest: {newest.what}"
