"""Reads a dump of torch's Flight Recorder, pickle or JSON, of format 2.x.

Dumps differ between versions of torch, and a dying rank may write anything. So each field is checked, and an entry that
makes no sense is left out and counted. Fields and their meaning: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from holdfast_agent.evidence.plain_pickle import (
    DICT_BYTES,
    LIST_BYTES,
    SCALAR_BYTES,
    NotPlainError,
    check_memory,
    load_plain,
)
from holdfast_proto.limits import LARGEST_COUNT, NAME_CHARACTERS
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import recorder_pb2 as recorder

LARGEST_DUMP_BYTES = 256 << 20
"""A dump of 20,000 calls with stacks has some 100 MB."""

LONGEST_TEXT = 4096
_DIGITS = 20
_MOST_GROUPS = 4096
_TEXTS_KEPT, _LONGEST_KNOWN = 4096, 128
"""Short texts and lists whose reading is remembered, and how long these are. A job makes the same few calls often."""

HIGHEST_RANK = (1 << 16) - 1
"""A larger number in a dump or in the name of a file is no rank."""

CALLS_KEPT = 256
"""Newest calls of a shortened dump. Hosts were seen to run 120 calls ahead (NVIDIA/nccl issue 1730)."""
_SIZES_KEPT = 96
_LONGEST_SHORT = 1024
_LARGEST = (1 << 63) - 1
_WORLD = "0"
"""Both the name and the id of the world's group."""
_PICKLE = b"\x80"
_KEYS = ("entries", "pg_status", "pg_config")

_STATES = {
    "scheduled": recorder.CALL_STATE_SCHEDULED,
    "started": recorder.CALL_STATE_STARTED,
    "completed": recorder.CALL_STATE_COMPLETED,
}
_UNFINISHED = (recorder.CALL_STATE_SCHEDULED, recorder.CALL_STATE_STARTED)
_UNFOLLOWED = ("gloo:", "c10d:", "mpi:", "ucc:")
"""Backends of which the generic recorder writes "scheduled" forever: only ``retired`` moves. Point-to-point calls of
gloo have no entries, and move the numbers of the status all the same."""

_FOLLOWED = ("nccl:", "xccl:")
"""Backends whose own recorder looks at the device when it retires a call (``FlightRecorder::retire_id``). One that is
retired and not complete has timed out: its watchdog has given it up, and it is as pending as before."""

_TORCHCOMMS = (
    "it is of TorchComms' recorder, which numbers the calls of all groups together and ends them when they are made:"
    " it cannot show who hangs"
)
"""``FlightRecorder::record`` and ``TorchComm::postHook`` of meta-pytorch/torchcomms, 2026. Its ``ranks`` count within
the group, too (``TorchComm::initRanks``)."""

_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib/python3|^<frozen|^torch/|/torch/(distributed|nn|autograd|_dynamo)/|\?\?"
)


class NoDumpError(ValueError):
    """The bytes are no dump of a Flight Recorder."""


def read_dump(data: bytes) -> recorder.RecorderDump:
    """Return the content of a dump. Raises NoDumpError if it is none."""
    try:
        document = load_plain(data) if data.startswith(_PICKLE) else _load_json(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        begun = data.lstrip().startswith(b"{")
        place = error.pos if isinstance(error, json.JSONDecodeError) else error.start
        damaged = f"it is no complete JSON: it is cut off or damaged at character {place}"
        other = "it is neither JSON nor a pickle" if data else "it is empty"
        raise NoDumpError(damaged if begun else other) from None
    except NotPlainError as error:
        raise NoDumpError(str(error)) from None
    except ValueError:
        raise NoDumpError("it has a number of too many digits") from None
    except RecursionError:
        raise NoDumpError("its lists are nested too deeply") from None
    except MemoryError:
        raise NoDumpError("it needs more memory than there is") from None
    try:
        return from_document(document)
    except NoDumpError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise NoDumpError("it has a value that no Flight Recorder writes") from None


def check_json(data: bytes) -> None:
    """Raise NotPlainError, before anything is built, if reading a JSON may take more memory than a dump needs.

    Its brackets, commas and colons tell how many objects there are at most.
    """
    costs = {b"{": DICT_BYTES, b"[": LIST_BYTES, b",": SCALAR_BYTES, b":": SCALAR_BYTES}
    check_memory(len(data) + sum(data.count(sign) * cost for sign, cost in costs.items()))


def _load_json(data: bytes) -> object:
    check_json(data)
    return json.loads(data)


def from_document(document: object) -> recorder.RecorderDump:
    """Return the content of a dump that is parsed already. Raises NoDumpError if it is none."""
    if not isinstance(document, dict) or not any(isinstance(document.get(key), dict | list) for key in _KEYS):
        raise NoDumpError("it has none of entries, pg_status and pg_config, which dumps of a Flight Recorder have")
    version = document.get("version", "")
    if not isinstance(version, str):
        raise NoDumpError('its version is no text, as in "2.10"')
    version = _plain_text(version)
    if version and not version.startswith("2."):
        raise NoDumpError(f"its format is version {version[:16]}, and only 2.x can be read")
    return _Reader(document, version).read()


def shortened(dump: recorder.RecorderDump) -> recorder.RecorderDump:
    """Return a dump of the newest calls alone, as a smaller ring would hold it. Some 15 KB are left of a usual dump.

    Raises ValueError if a number is so large that no daemon would take it.
    """
    short = recorder.RecorderDump()
    short.CopyFrom(dump)
    left_out = len(dump.calls) - CALLS_KEPT
    if left_out > 0:
        del short.calls[:left_out]
        short.has_wrapped = True
    for group in short.groups:
        group.name, group.description = group.name[:NAME_CHARACTERS], group.description[:NAME_CHARACTERS]
        numbers = (group.last_enqueued, group.last_started, group.last_completed)
        if not -1 <= min(numbers) <= max(numbers) <= LARGEST_COUNT:
            group.has_status, group.last_enqueued, group.last_started, group.last_completed = False, 0, 0, 0
    for call in short.calls:
        if max(call.order, call.seq, call.p2p_seq, call.timeout_ms) > LARGEST_COUNT:
            raise ValueError("a call of it has a number that is out of range")
        call.op, call.frame = call.op[:_LONGEST_SHORT], call.frame[:_LONGEST_SHORT]
        call.dtypes = call.dtypes[:_LONGEST_SHORT]
        call.ClearField("output_sizes")
        if len(call.input_sizes) > _SIZES_KEPT:
            # Longer ones cannot be compared with those of other ranks any more.
            call.ClearField("input_sizes")
    return short


class _Reader:
    """Turns one document into one message."""

    def __init__(self, document: dict[str, Any], version: str) -> None:
        self._document = document
        self._dump = recorder.RecorderDump(version=version[:16])
        self._indices: dict[str, int] = {}
        """Name of a group -> its index. One process has only one group of a name."""
        self._ids: dict[str, str] = {}
        """``pg_id`` -> name."""
        self._unfollowed: set[str] = set()
        """Names of groups of which the status counts point-to-point calls that the entries do not show."""

    def read(self) -> recorder.RecorderDump:
        self._read_members(self._document.get("pg_config"))
        entries = self._document.get("entries")
        # JSON leaves the key out if there are no entries; the pickle of a status alone has an empty list.
        self._read_calls(entries if isinstance(entries, list | tuple) else ())
        if self._is_of_torchcomms():
            raise NoDumpError(_TORCHCOMMS)
        self._read_status(self._document.get("pg_status"))
        return self._dump

    def _is_of_torchcomms(self) -> bool:
        """Return whether all groups are described by the name of their backend, as TorchComms alone does it."""
        calls, groups = self._dump.calls, self._dump.groups
        return bool(calls) and all(call.op.startswith(f"{groups[call.group].description}:") for call in calls)

    def _read_members(self, config: object) -> None:
        for key, described in config.items() if isinstance(config, dict) else ():
            try:
                name = _plain_text(described.get("name") or key)
                runs = runs_of(_members(described.get("ranks")))
                self._group(name, _plain_text(described.get("desc"))).member_runs.extend(runs)
            except (AttributeError, TypeError, ValueError):
                self._dump.bad_entries += 1

    def _read_calls(self, entries: Iterable[Any]) -> None:
        calls = []
        size = 0
        for entry in entries:
            try:
                calls.append(self._call(entry))
                size += calls[-1].ByteSize()
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
                self._dump.bad_entries += 1
            if size > LARGEST_DUMP_BYTES:  # a pickle may name one text in each of a million calls
                raise NoDumpError(f"its calls are larger than {LARGEST_DUMP_BYTES >> 20} MiB")
        calls.sort(key=lambda call: call.order)
        if any(call.state == recorder.CALL_STATE_COMPLETED for call in calls):  # else its states show nothing
            for call in calls:
                call.retired &= not (call.op.startswith(_FOLLOWED) and call.state in _UNFINISHED)
        self._dump.calls.extend(calls)
        self._dump.has_calls = bool(calls)
        self._dump.has_wrapped = bool(calls) and calls[0].order > 0
        self._dump.is_partial = any(after.order - before.order > 1 for before, after in pairwise(calls))

    def _call(self, entry: Mapping[str, Any]) -> recorder.RecordedCall:
        name, description = _group_name(entry)
        self._ids[_plain_text(entry.get("pg_id", name))] = name
        self._group(name, description)
        op = _text(entry["profiling_name"])
        if op.startswith(_UNFOLLOWED):
            self._unfollowed.add(name)
        state = _STATES.get(_plain_text(entry.get("state")), recorder.CALL_STATE_UNSPECIFIED)
        return recorder.RecordedCall(
            order=_number(entry.get("record_id", 0)),
            group=self._indices[name],
            p2p=entry.get("is_p2p") is True,
            seq=_number(entry["collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"]),
            p2p_seq=_number(entry.get("p2p_seq_id", 0)),
            op=op,
            input_sizes=_text(entry.get("input_sizes")),
            output_sizes=_text(entry.get("output_sizes")),
            dtypes=_text(entry.get("input_dtypes")),
            state=recorder.CALL_STATE_UNSPECIFIED if op.startswith(_UNFOLLOWED) else state,
            retired=entry.get("retired") is True,
            created_ns=_number(entry.get("time_created_ns") or 0),
            timeout_ms=_number(entry.get("timeout_ms") or 0),
            frame=_user_frame(entry.get("frames")),
        )

    def _read_status(self, status: object) -> None:
        if not isinstance(status, dict):
            self._dump.has_unnamed_status = True
            return
        names = self._ids or _names_of_ids(status, self._indices)
        for key, counters in itertools.islice(status.items(), _MOST_GROUPS):
            # The status knows groups by id alone, and the ring need not show any longer which group an id means.
            name = names.get(_plain_text(key))
            if name is None and key in (_WORLD, 0) and _WORLD in self._indices and _WORLD not in names.values():
                name = _WORLD  # the first group that a process makes
            if name is None or name in self._unfollowed:
                self._dump.has_unnamed_status = True
                continue
            try:
                group = self._dump.groups[self._indices[name]]
                group.last_enqueued = _signed(counters["last_enqueued_collective"])
                group.last_started = _signed(counters.get("last_started_collective", -1))
                group.last_completed = _signed(counters["last_completed_collective"])
                group.has_status = True
            except (LookupError, TypeError, ValueError, AttributeError):
                self._dump.bad_entries += 1

    def _group(self, name: str, description: str) -> recorder.RecordedGroup:
        if name not in self._indices:
            if len(self._indices) >= _MOST_GROUPS:
                raise ValueError("more groups than a rank can have")
            self._dump.groups.add(name=name, description=description)
            self._indices[name] = len(self._dump.groups) - 1
        return self._dump.groups[self._indices[name]]


def _names_of_ids(status: Mapping[object, object], names: Iterable[str]) -> dict[str, str]:
    """Return the name of each id for a dump without calls, if that is known.

    Ids count the groups of a process, and torch's numbers as names count all groups, both in the order in which they
    are made. So if there are as many names as ids, all of them numbers, their orders are the same.
    """
    named = list(names)
    ids = [_plain_text(key) for key in status] if len(status) == len(named) else []
    if not ids or not all(text.isdecimal() and len(text) < _DIGITS for text in (*ids, *named)):
        return {}
    return dict(zip(sorted(ids, key=int), sorted(named, key=int), strict=True))


def _group_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    named = entry.get("process_group")
    if isinstance(named, list | tuple) and len(named) >= 1:
        return _plain_text(named[0]), _plain_text(named[1]) if len(named) > 1 else ""
    return _plain_text(entry.get("pg_name", entry["pg_id"])), ""


def _members(ranks: object) -> list[int]:
    """Return the ranks of a text such as "[0, 1]", or of a list."""
    numbers = re.findall(r"\d+", ranks) if isinstance(ranks, str) else ranks
    if not isinstance(numbers, list | tuple):
        raise TypeError("ranks are neither a text nor a list")
    members = [_number(number) for number in numbers]
    if any(member > HIGHEST_RANK for member in members) or len(set(members)) < len(members):
        raise ValueError("no list of ranks")
    return members


def _number(value: object) -> int:
    number = _signed(value)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _signed(value: object) -> int:
    if type(value) is int and -_LARGEST <= value <= _LARGEST:
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("no number")
    if isinstance(value, str) and len(value) > _DIGITS:
        raise ValueError("a number of too many digits")
    number = int(value)
    if abs(number) > _LARGEST:
        raise ValueError("too large")
    return number


def printable(text: str) -> str:
    """Return a text without characters that would break a line, or steer a terminal.

    Lone surrogates, which JSON may spell, are not printable either: they are no text for a message.
    """
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def _plain_text(value: object) -> str:
    """Return a text, or a small number as one. Raises TypeError for anything else, which may be of any size."""
    if value is None:
        return ""
    return _printable_start(value) if isinstance(value, str) else str(_signed(value))


def _printable_start(text: str) -> str:
    return _known_printable(text) if len(text) <= _LONGEST_KNOWN else printable(text[:LONGEST_TEXT])


_known_printable = lru_cache(_TEXTS_KEPT)(printable)


def _text(value: object) -> str:
    """Return a text, or lists of texts and numbers as Python writes them. Raises TypeError for anything else."""
    if isinstance(value, str):
        return _printable_start(value)
    key = _key_of(value)
    return _written(value) if key is None else _known_written(key)


def _key_of(value: object) -> tuple[object, ...] | None:
    """Return a short list of texts, numbers and short lists of numbers as a key; None for all else."""
    if not isinstance(value, list | tuple) or len(value) > _LONGEST_KNOWN:
        return None
    key: list[object] = []
    for item in value:
        if type(item) is list or type(item) is tuple:
            if len(item) > _LONGEST_KNOWN or any(type(number) is not int for number in item):
                return None
            key.append(tuple(item))
        elif type(item) is int or (type(item) is str and len(item) <= _LONGEST_KNOWN):
            key.append(item)
        else:
            return None
    return tuple(key)


def _written(value: object) -> str:
    return "".join(itertools.islice(_pieces(value, depth=3), LONGEST_TEXT))[:LONGEST_TEXT]


_known_written = lru_cache(_TEXTS_KEPT)(_written)


def _pieces(value: object, depth: int) -> Iterator[str]:
    if not isinstance(value, list | tuple):
        yield _plain_text(value) if depth == 3 or not isinstance(value, str) else f"'{_plain_text(value)}'"
        return
    if not depth:
        raise TypeError("lists in lists in lists")
    yield "["
    for number, item in enumerate(value):
        yield ", " if number else ""
        yield from _pieces(item, depth - 1)
    yield "]"


@lru_cache(_TEXTS_KEPT)
def _is_in_library(file: str) -> bool:
    return _LIBRARY.search(file) is not None


def _user_frame(frames: object) -> str:
    """Return the innermost frame that is in no library, as FILE:LINE FUNCTION."""
    if not isinstance(frames, list | tuple):
        return ""
    for frame in frames:
        if isinstance(frame, dict):
            file = _plain_text(frame.get("filename"))
            if file and not _is_in_library(file):
                line, function = _plain_text(frame.get("line", "?")), _plain_text(frame.get("name"))
                return f"{file}:{line} {function}"[:LONGEST_TEXT]
    return ""
