"""Messages to people: a message groups one or more notices, each about one thing that happened to a run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import Any

VERSION = 1
"""Version of :func:`as_json`. It grows when a field gets another name or meaning, not when one is added."""

STATUSES = ("open", "noted", "resolved", "failed", "finished", "stopped", "test")

LONGEST_TEXT = 1000
"""Most characters of one text in a notice. What a rank says last can be much longer."""
MOST_NOTICES = 50
"""Most notices in a message. Older ones of a larger group are only counted."""
_CULPRITS_SHOWN = 4
_KINDS: dict[object, type | UnionType] = {str: str, int: int, float: int | float}
"""Declared type of a field of a notice -> what it is in JSON."""


@dataclass(frozen=True)
class Culprit:
    """A rank that an incident names, and its process."""

    rank: int
    node: str = ""
    """Empty: not known."""
    pid: int = 0
    """0: not known."""

    def __str__(self) -> str:
        """Return ``rank 5 (node-2, pid 4711)``, as far as it is known."""
        known = ", ".join(filter(None, (self.node, f"pid {self.pid}" if self.pid else "")))
        return f"rank {self.rank} ({known})" if known else f"rank {self.rank}"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One thing that happened. All texts are plain: each channel escapes them for its service."""

    event: str
    """One of vocabulary.NOTIFY_EVENTS, or "test"."""
    status: str
    """One of STATUSES. A notice with the ``key`` of an earlier one replaces it."""
    key: str
    """The same for all notices about one incident, or about the run itself."""
    kind: str = ""
    """Kind of the incident, such as "dead_rank"; empty: it is about the run."""
    what: str
    """What happened, in one line."""
    next: str
    """What to do next, in one line."""
    culprits: tuple[Culprit, ...] = ()
    step: int = -1
    """Step in which it happened; -1: before the first, or not known."""
    generation: int = 0
    unix_s: float
    link: str = ""
    """Address in the console; empty: `see` alone says where to look."""
    see: str
    """Command that shows more."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprits by number."""
        return tuple(culprit.rank for culprit in self.culprits)


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is sent at one time about one run."""

    run: str
    host: str
    """Host of the daemon that reports it."""
    title: str
    sent_unix_s: float
    """Time at which the message was made. It may be delivered later."""
    notices: tuple[Notice, ...]
    """The newest last. In a late message, those that are still open come after the others."""
    left_out: int = 0
    """Further notices that are older than these."""
    late_s: float = 0.0
    """Age of the oldest notice that could not be sent when it was due; 0: all were."""

    @property
    def newest(self) -> Notice:
        """The notice that counts: the one that happened last, or in a late message the last that is still open."""
        return self.notices[-1]

    def in_reading_order(self, most: int) -> tuple[Notice, ...]:
        """Return at most the ``most`` newest notices as people read them: of a late message, the newest first."""
        shown = self.notices[-most:]
        return shown[::-1] if self.late_s else shown

    @property
    def text(self) -> str:
        """The whole message as plain text."""
        return "\n".join(_lines(self))


def _lines(message: Message) -> list[str]:
    lines = [message.title, ""] if len(message.notices) > 1 else []
    for notice in message.in_reading_order(MOST_NOTICES):
        place = ", ".join(
            part
            for part in (
                f"run {message.run}",
                culprits_text(notice.culprits),
                f"step {notice.step}" if notice.step >= 0 else "",
                f"reported by {message.host}",
            )
            if part
        )
        lines += [notice.what, f"Next: {notice.next}", place, notice.link or notice.see, ""]
    if message.left_out:
        lines.append(f"{message.left_out} older notices are left out.")
    return lines[:-1] if not lines[-1] else lines


def culprits_text(culprits: Sequence[Culprit]) -> str:
    """Return where the culprits run, of many the first few; "" without any."""
    more = len(culprits) - _CULPRITS_SHOWN
    return ", ".join(map(str, culprits[:_CULPRITS_SHOWN])) + (f" and {more} more" if more > 0 else "")


def as_json(message: Message) -> dict[str, Any]:
    """Return what the channels `webhook` and `command` get. docs/notifications.md describes it."""
    data = {"version": VERSION, **asdict(message), "text": message.text}
    data["notices"] = [notice_as_json(notice) for notice in message.notices]
    return data


def notice_as_json(notice: Notice) -> dict[str, Any]:
    """Return a notice as :func:`as_json` has it."""
    return {**asdict(notice), "ranks": list(notice.ranks)}


def from_json(data: Mapping[str, Any]) -> Message:
    """Return the message that :func:`as_json` has made. Raises KeyError, TypeError or ValueError for other data."""
    if data["version"] != VERSION:
        raise ValueError("another version")
    notices = tuple(notice_from_json(one) for one in data["notices"])
    if not notices:
        raise ValueError("no notices")
    return Message(
        run=str(data["run"]),
        host=str(data["host"]),
        title=str(data["title"]),
        sent_unix_s=float(data["sent_unix_s"]),
        notices=notices,
        left_out=int(data["left_out"]),
        late_s=float(data.get("late_s", 0.0)),  # files of earlier versions have none
    )


def notice_from_json(data: Mapping[str, Any]) -> Notice:
    """Return the notice of a JSON object. Raises KeyError, TypeError or ValueError for other data."""
    known = {field.name for field in fields(Notice)}
    values = {name: value for name, value in data.items() if name in known}
    # Files of earlier versions have ranks alone.
    culprits = data["culprits"] if "culprits" in data else [{"rank": rank} for rank in data["ranks"]]
    named = tuple(Culprit(int(one["rank"]), str(one.get("node", "")), int(one.get("pid", 0))) for one in culprits)
    notice = Notice(**{**values, "culprits": named})
    for field in fields(Notice):
        kind = _KINDS.get(field.type)
        if kind is not None and not isinstance(value := getattr(notice, field.name), kind):
            raise TypeError(f"{field.name} is {value!r:.40}")
    return notice


def shortened(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text as one line of printable characters, cut off if it is longer than ``most``."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
