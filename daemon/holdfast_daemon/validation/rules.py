"""Rules for single values. Each raises RefusedError, which names the field and the value.

Every range check is a chained comparison: NaN fails it, as do both infinities and negative numbers.
"""

import re
from collections.abc import Collection, Iterable, Sized
from pathlib import PurePosixPath

from holdfast_proto.limits import (
    LARGEST_COUNT,
    LATEST_UNIX_S,
    LONGEST_PROFILE_S,
    LONGEST_S,
    MOST_PROFILED_STEPS,
    MOST_RANKS,
    NAME_CHARACTERS,
)
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

MOST_NODES = 2**17
MOST_ITEMS = 2**16
"""In one repeated field."""

PATH_CHARACTERS = 4096
LARGEST_PID = 2**22
"""The kernel's PID_MAX_LIMIT."""

TEXT_CHARACTERS = 2**20
"""Of free text, such as a reason or the shapes of a call's inputs. Real ones are far shorter."""

PHASES = frozenset(common.Phase.values())
ACTIVITIES = frozenset(common.Activity.values())
PARTIES = frozenset(common.Party.values())
DIRECTIONS = frozenset(common.Direction.values())
RECORDER_SOURCES = frozenset(common.RecorderSource.values())
OWN_TIME_SOURCES = frozenset(common.OwnTimeSource.values())
LIVES = frozenset(store.Life.values())

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FAULT_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_STREAM_ID = re.compile(r"\d{1,20}(-\d{1,20})?")


class RefusedError(ValueError):
    """A message holds a value that it cannot hold. The text is one line: the field and the value."""


def check_count(value: int, field: str, most: int = LARGEST_COUNT) -> None:
    """Check a counter, a generation, a sequence number or a size."""
    if not 0 <= value <= most:
        raise RefusedError(f"{field} is {value}, more than {most}")


def check_step(value: int, field: str) -> None:
    """Check the number of a step; -1 stands for none."""
    if not -1 <= value <= LARGEST_COUNT:
        raise RefusedError(f"{field} is {value}: steps count from 0, and -1 stands for none")


def check_steps(values: Collection[int], field: str) -> None:
    """Check a list of steps."""
    check_length(values, field)
    if values and not -1 <= min(values) <= max(values) <= LARGEST_COUNT:
        raise RefusedError(f"{field} holds {min(values)} and {max(values)}: steps count from 0, and -1 stands for none")


def check_seconds(value: float, field: str) -> None:
    """Check a duration."""
    if not 0.0 <= value <= LONGEST_S:
        raise RefusedError(f"{field} is {value:g} s")


def check_unix_s(value: float, field: str) -> None:
    """Check a moment; 0 stands for none."""
    if not 0.0 <= value <= LATEST_UNIX_S:
        raise RefusedError(f"{field} is {value:g}, which is no Unix time")


def check_rank(value: int, world_size: int, field: str) -> None:
    """Check the number of a rank."""
    if value >= world_size:
        raise RefusedError(f"{field} is rank {value} of a world of {world_size}")


def check_known(value: int, known: Collection[int], field: str) -> None:
    """Check an enum: proto3 carries numbers that this version does not know."""
    if value not in known:
        raise RefusedError(f"{field} has the unknown number {value}")


def check_text(value: str, field: str, most: int = TEXT_CHARACTERS) -> None:
    """Check the length of a string."""
    if len(value) > most:
        raise RefusedError(f"{field} has {len(value)} characters, more than {most}")


def check_line(value: str, field: str, most: int) -> None:
    """Check a string that is shown as part of a line."""
    check_text(value, field, most)
    if not value.isprintable():
        raise RefusedError(f"{field} is {value[:80]!r}, which cannot be shown")


def check_length(values: Sized, field: str, most: int = MOST_ITEMS) -> None:
    """Check the length of a repeated field or of a map."""
    if len(values) > most:
        raise RefusedError(f"{field} has {len(values)} items, more than {most}")


def check_node_name(value: str, field: str) -> None:
    """Check a node's name: it is part of keys, of labels and of lines for people."""
    if not (0 < len(value) <= NAME_CHARACTERS and value.isprintable()):
        raise RefusedError(f"{field} is {value[:80]!r}: a node's name has 1 to {NAME_CHARACTERS} printable characters")


def check_id(value: str, field: str) -> None:
    """Check the id of an incident or a suspicion, which names a folder; empty: there is none."""
    if value and not _ID.fullmatch(value):
        raise RefusedError(f"{field} is {value[:80]!r}: an id has letters, digits, '.', '_' and '-'")


def check_stream_id(value: str, field: str) -> None:
    """Check the id of a stream's entry; empty: the beginning."""
    if value and not _STREAM_ID.fullmatch(value):
        raise RefusedError(f"{field} is {value[:80]!r}, which is no id of a stream's entry")


def check_fault_kind(value: str, field: str) -> None:
    """Check the name of a fault in the catalogue."""
    if not _FAULT_KIND.fullmatch(value):
        raise RefusedError(f"{field} is {value[:80]!r}: name one of `holdfast inject --list`")


def check_file(value: str, field: str) -> None:
    """Check the name of an incident's file, which is within the incident's folder."""
    path = PurePosixPath(value)
    within = value and not path.is_absolute() and ".." not in path.parts
    if not (within and value.isprintable() and len(value) <= PATH_CHARACTERS):
        raise RefusedError(f"{field} names {value[:80]!r}: a file within the incident's folder is expected")


def check_phase_times(phases: Iterable[int], times_s: Iterable[float], field: str) -> None:
    """Check a map of seconds by phase."""
    for phase in phases:
        check_known(phase, PHASES, field)
    for time_s in times_s:
        check_seconds(time_s, field)


def check_pending(call: common.PendingCall, world_size: int, field: str) -> None:
    """Check a call that a rank has enqueued and not completed."""
    check_rank(call.rank, world_size, field)
    check_count(call.seq, f"{field}.seq")
    check_text(call.group, f"{field}.group", NAME_CHARACTERS)
    check_text(call.op, f"{field}.op", NAME_CHARACTERS)
    check_text(call.sizes, f"{field}.sizes")
    check_text(call.dtypes, f"{field}.dtypes")


def check_blocked_on(blocked: common.BlockedOn, field: str, *, may_have_next: bool = True) -> None:
    """Check what a rank waits for. Its texts become part of one line for people."""
    check_known(blocked.activity, ACTIVITIES, f"{field}.activity")
    check_known(blocked.party, PARTIES, f"{field}.party")
    check_count(blocked.pid, f"{field}.pid", LARGEST_PID)
    check_rank(blocked.rank, MOST_RANKS, f"{field}.rank")
    for name, most in (("call", NAME_CHARACTERS), ("path", PATH_CHARACTERS), ("command", NAME_CHARACTERS)):
        check_line(getattr(blocked, name), f"{field}.{name}", most)
    check_line(blocked.peer, f"{field}.peer", NAME_CHARACTERS)
    check_line(blocked.thread, f"{field}.thread", NAME_CHARACTERS)
    if blocked.HasField("next"):
        if not may_have_next:
            raise RefusedError(f"{field} has a `next`: only one thing follows another")
        check_blocked_on(blocked.next, f"{field}.next", may_have_next=False)


def check_exit(ended: store.RankExit, field: str) -> None:
    """Check how a rank ended."""
    check_step(ended.step, f"{field}.step")
    check_known(ended.phase, PHASES, f"{field}.phase")
    check_unix_s(ended.exited_unix_s, f"{field}.exited_unix_s")
    check_count(ended.order, f"{field}.order")
    check_count(ended.steps_until, f"{field}.steps_until")
    if not 0 <= ended.signal <= 255:
        raise RefusedError(f"{field}.signal is {ended.signal}")
    check_text(ended.last_words, f"{field}.last_words")
    check_text(ended.kernel_line, f"{field}.kernel_line")
    check_gpu_fault(ended.gpu_fault, f"{field}.gpu_fault")


def check_gpu_fault(fault: store.GpuFault, field: str) -> None:
    """Check an error of a GPU."""
    check_text(fault.uuid, f"{field}.uuid", NAME_CHARACTERS)
    check_line(fault.meaning, f"{field}.meaning", NAME_CHARACTERS)
    check_text(fault.line, f"{field}.line")
    check_unix_s(fault.unix_s, f"{field}.unix_s")


def check_profile(rank: int, steps: int, patience_s: float) -> None:
    """Check a request to profile a rank."""
    check_rank(rank, MOST_RANKS, "rank")
    if not 1 <= steps <= MOST_PROFILED_STEPS:
        raise RefusedError(f"steps is {steps}: profile 1 to {MOST_PROFILED_STEPS} steps")
    if not 1.0 <= patience_s <= LONGEST_PROFILE_S:
        raise RefusedError(f"patience_s is {patience_s:g}: wait 1 to {LONGEST_PROFILE_S:g} s")
