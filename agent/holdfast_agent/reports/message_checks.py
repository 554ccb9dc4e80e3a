"""Removes from a rank's message what makes no sense, before the agent uses any of it.

Only the bad part is removed: a rank whose reports were refused as a whole, because of one odd number, would show no
progress and seem to hang. Losses and norms may be NaN or infinite: detectors look for that.
"""

import math
import re
from collections.abc import Callable, MutableSequence
from typing import TypeVar

from holdfast_proto.limits import (
    FINGERPRINT_BYTES,
    LARGEST_COUNT,
    LATEST_UNIX_S,
    LOGGED_NAME_CHARACTERS,
    LONGEST_S,
    MOST_GROUPS,
    MOST_LOGGED_NAMES,
    MOST_RANKS,
    MOST_WITNESS_WORDS,
    NAME_CHARACTERS,
    WITNESS_WORDS_CHARACTERS,
)
from holdfast_proto.member_runs import flaw_of_runs
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import session_pb2 as session

LARGEST_SLOT_BYTES = 2**50
MOST_SLOTS = 8
LARGEST_PID = 2**22
"""The kernel's PID_MAX_LIMIT."""
WORDS_CHARACTERS = 64 * 1024
MOST_MODULES = 4000
MOST_COORDINATES = 16
LONGEST_SOCKET_BYTES = 107
"""Longest path of a unix socket that the kernel takes."""
MOST_RECORDERS = 64
SOURCES = frozenset(common.RecorderSource.values())
OWN_TIME_SOURCES = frozenset(common.OwnTimeSource.values())
PHASES = frozenset(common.Phase.values())
DIRECTIONS = frozenset(common.Direction.values())

_BACKEND = re.compile(r"[A-Za-z0-9_-]{1,64}")

_Part = TypeVar("_Part")

Refuse = Callable[[str], object]
"""Called with the reason for each part that is removed."""


def flaw_of_hello(hello: session.Hello) -> str:
    """Return why a rank that another launcher has started cannot belong to any world; "" if it can."""
    if hello.world_size > MOST_RANKS or hello.rank >= max(hello.world_size, 1):
        return f"rank {hello.rank} is not in a world of {hello.world_size}"
    if hello.local_rank > hello.rank:
        return f"local rank {hello.local_rank} is larger than rank {hello.rank}"
    if hello.local_world_size > hello.world_size:
        return f"{hello.local_world_size} local ranks are more than the world's {hello.world_size}"
    return "" if 0 < hello.pid <= LARGEST_PID else f"pid {hello.pid} is out of range"


def clean_hello(hello: session.Hello, refuse: Refuse) -> None:
    """Remove what makes no sense from a rank's first message."""
    if len(hello.device) > NAME_CHARACTERS:
        refuse("a device whose name is too long")
        hello.device = ""
    are_proper = all(len(axis) <= NAME_CHARACTERS and at < MOST_RANKS for axis, at in hello.coordinates.items())
    if not are_proper or len(hello.coordinates) > MOST_COORDINATES:
        refuse("coordinates that are out of range")
        hello.ClearField("coordinates")
    if hello.training_thread > LARGEST_PID:
        refuse("a training thread whose number is out of range")
        hello.training_thread = 0


def flaw_of_slots(request: session.SlotRequest) -> str:
    """Return why a request for slots makes no sense; "" if it does."""
    if request.slots > MOST_SLOTS:
        return f"{request.slots} slots are more than {MOST_SLOTS}"
    if request.bytes_per_slot > LARGEST_SLOT_BYTES:
        return f"slots of {request.bytes_per_slot} bytes are larger than any node's memory"
    return ""


def clean_report(report: session.Report, world_size: int, refuse: Refuse, *, now_unix_s: float) -> None:
    """Remove what makes no sense from a report. ``world_size``: 0 if it is not known."""
    if not -1 <= report.progress.step <= LARGEST_COUNT:
        refuse("a progress whose step is out of range")
        report.ClearField("progress")
    _clean_progress(report.progress, world_size, refuse)
    _keep(report.steps, _flaw_of_step, refuse)
    for step in report.steps:
        _clean_step(step, refuse, now_unix_s)
    _keep(report.snapshots, _flaw_of_snapshot, refuse)
    _keep(report.pending, _flaw_of_call, refuse)
    _cut(report.pending, "more pending calls than a rank can have", refuse)
    if any(number > LARGEST_COUNT for _, number in report.memory.ListFields()):
        refuse("a memory status that is out of range")
        report.ClearField("memory")
    for phase in [phase for phase, s in report.outside_s.items() if phase not in PHASES or not _is_time(s)]:
        refuse("a phase outside of steps that is unknown, or whose duration is out of range")
        del report.outside_s[phase]
    _clean_logged(report, refuse)
    _clean_recorders(report, refuse)
    _clean_place(report, refuse)
    for spent in ("reporter_cpu_s", "own_wait_s", "call_wait_s", "device_own_s"):
        if not _is_time(getattr(report, spent)):
            refuse(f"{spent} that is out of range")
            report.ClearField(spent)
    for end in ("steps_until", "planned_steps"):
        if getattr(report, end) > LARGEST_COUNT:
            refuse("an end of the training loop that is out of range")
            report.ClearField(end)
    if len(report.last_words) > WORDS_CHARACTERS:
        refuse("last words that are too long")
        report.last_words = report.last_words[-WORDS_CHARACTERS:]
    modules = [name for name in report.modules if _is_module(name)][:MOST_MODULES]
    if len(modules) < len(report.modules):
        refuse("modules that cannot be imported, or are too many")
        report.ClearField("modules")
        report.modules.extend(modules)


def _clean_logged(report: session.Report, refuse: Refuse) -> None:
    _keep(report.logged, _flaw_of_logged, refuse)
    if len(report.logged) > MOST_LOGGED_NAMES:
        refuse("more logged numbers than a rank can have names for")
        del report.logged[MOST_LOGGED_NAMES:]


def clean_witness_report(said: session.WitnessWords, refuse: Refuse) -> None:
    """Remove what makes no sense from what a witness says of ranks: it becomes a part of lines for people."""
    _keep(said.words, _flaw_of_words, refuse)
    if len(said.words) > MOST_WITNESS_WORDS:
        refuse("more words of a witness than one incident needs")
        del said.words[MOST_WITNESS_WORDS:]
    if not 0 < len(said.witness) <= NAME_CHARACTERS or not said.witness.isprintable():
        refuse("words of a witness without a name")
        said.ClearField("words")


def _flaw_of_words(words: session.RankWords) -> str:
    ranks = list(words.ranks)
    if not ranks or ranks != sorted(set(ranks)) or ranks[-1] >= MOST_RANKS:
        return "words of a witness whose ranks do not ascend"
    is_line = 0 < len(words.text) <= WITNESS_WORDS_CHARACTERS and words.text.isprintable()
    return "" if is_line else "words of a witness that are no short line"


def _clean_place(report: session.Report, refuse: Refuse) -> None:
    for name, what in (("device", "name"), ("device_uuid", "UUID")):
        if len(getattr(report, name)) > NAME_CHARACTERS:
            refuse(f"a device whose {what} is too long")
            report.ClearField(name)
    if report.training_thread > LARGEST_PID:
        refuse("a training thread whose number is out of range")
        report.ClearField("training_thread")
    if report.device_steps > LARGEST_COUNT:
        refuse("device_steps that are out of range")
        report.ClearField("device_steps")
    if report.own_time_source not in OWN_TIME_SOURCES:
        refuse("a source of the own time that this agent does not know")
        report.ClearField("own_time_source")
    # The reason becomes a part of lines for people.
    if len(report.own_time_reason) > NAME_CHARACTERS or not report.own_time_reason.isprintable():
        refuse("a reason for an unknown own time that is no short line")
        report.ClearField("own_time_reason")


def _clean_progress(progress: common.Progress, world_size: int, refuse: Refuse) -> None:
    if progress.phase not in PHASES:
        refuse("a phase that this agent does not know")
        progress.phase = common.PHASE_UNSPECIFIED
    _keep(progress.groups, lambda group: _flaw_of_group(group, world_size), refuse)
    _cut(progress.groups, "more process groups than a rank can have", refuse)
    _keep(progress.device_groups, lambda group: _flaw_of_group(group, world_size), refuse)
    _cut(progress.device_groups, "more groups on devices than a rank can have", refuse)
    _keep(progress.channels, lambda channel: _flaw_of_channel(channel, world_size), refuse)


def _clean_step(step: session.StepRecord, refuse: Refuse, now_unix_s: float) -> None:
    """Remove what makes no sense from a step's record. The record stays: the step itself has been done."""
    if not _is_time(step.duration_s):
        refuse("a step's duration that is out of range")
        step.ClearField("duration_s")
    if not 0 <= step.ended_unix_s <= LATEST_UNIX_S:
        refuse("a step's end that is out of range")
        step.ended_unix_s = now_unix_s
    for phase in [phase for phase, s in step.phase_s.items() if phase not in PHASES or not _is_time(s)]:
        refuse("a step's phase that is unknown, or whose duration is out of range")
        del step.phase_s[phase]
    for counter in ("tokens", "dropped_tokens"):
        if getattr(step, counter) > LARGEST_COUNT:
            refuse(f"{counter} that are out of range")
            step.ClearField(counter)
    for quantity in ("mfu", "pipeline_bubble"):
        if not math.isfinite(getattr(step, quantity)):
            refuse(f"a {quantity} that is not finite")
            step.ClearField(quantity)
    if len(step.samples) > FINGERPRINT_BYTES or len(step.nonfinite_origin.module) > NAME_CHARACTERS:
        refuse("samples or a module that are too long")
        step.ClearField("samples")
        step.ClearField("nonfinite_origin")
    bad = step.bad_gradient
    if len(bad.parameter) > NAME_CHARACTERS or not 0 <= bad.unix_s <= LATEST_UNIX_S:
        refuse("a bad gradient whose name is too long, or whose time is out of range")
        step.ClearField("bad_gradient")
    for hashes in (step.replicas, step.plain):
        _keep(hashes, lambda it: "" if len(it.part) <= NAME_CHARACTERS else "a part whose name is too long", refuse)
    if any(nbytes > LARGEST_COUNT for _, nbytes in step.coverage.ListFields()):
        refuse("a number of compared bytes that is out of range")
        step.ClearField("coverage")


def _keep(parts: MutableSequence[_Part], flaw: Callable[[_Part], str], refuse: Refuse) -> None:
    """Remove from a repeated field the parts that ``flaw`` finds something wrong with."""
    for index in reversed(range(len(parts))):
        reason = flaw(parts[index])
        if reason:
            refuse(reason)
            del parts[index]


def _cut(parts: MutableSequence[_Part], reason: str, refuse: Refuse) -> None:
    if len(parts) > MOST_GROUPS:
        refuse(reason)
        del parts[MOST_GROUPS:]


def _flaw_of_group(group: common.GroupProgress, world_size: int) -> str:
    if len(group.group) > NAME_CHARACTERS or len(group.description) > NAME_CHARACTERS:
        return "a process group whose name is too long"
    if group.source not in SOURCES:
        return "a process group of a recorder that this agent does not know"
    if max(group.enqueued, group.started, group.completed) > LARGEST_COUNT:
        return "a process group whose sequence number is out of range"
    flaw = flaw_of_runs(group.member_runs, world_size or MOST_RANKS)
    return f"a process group with {flaw}" if flaw else ""


def _clean_recorders(report: session.Report, refuse: Refuse) -> None:
    _keep(report.recorders, _flaw_of_recorder, refuse)
    if len(report.recorders) > MOST_RECORDERS:
        refuse("more recorders than a rank can have")
        del report.recorders[MOST_RECORDERS:]
    if not _is_socket(report.worker_socket):
        refuse("a socket of a worker server that is no path of a socket")
        report.worker_socket = ""


def _flaw_of_recorder(recorder: common.Recorder) -> str:
    # A backend's name becomes a part of the names of files and addresses.
    is_name = bool(_BACKEND.fullmatch(recorder.backend))
    return "" if is_name and recorder.source in SOURCES else "a recorder whose source or backend is no name"


def _is_socket(path: str) -> bool:
    return not path or (path.startswith("/") and "\0" not in path and len(path.encode()) <= LONGEST_SOCKET_BYTES)


def _flaw_of_channel(channel: common.ChannelProgress, world_size: int) -> str:
    if len(channel.group) > NAME_CHARACTERS or channel.direction not in DIRECTIONS:
        return "a channel whose group or direction is unknown to this agent"
    if channel.enqueued > LARGEST_COUNT or channel.completed > LARGEST_COUNT:
        return "a channel whose sequence number is out of range"
    return "a channel whose peer is not in the world" if world_size and channel.peer >= world_size else ""


def _flaw_of_step(step: session.StepRecord) -> str:
    return "" if 0 <= step.step <= LARGEST_COUNT else "a step whose number is out of range"


def _flaw_of_logged(number: common.LoggedNumber) -> str:
    # The name becomes a label of a metric and a part of lines for people.
    if not 0 < len(number.name) <= LOGGED_NAME_CHARACTERS or not number.name.isprintable():
        return "a logged number whose name is no short line"
    return "" if -1 <= number.step <= LARGEST_COUNT else "a logged number whose step is out of range"


def _flaw_of_snapshot(snapshot: session.SnapshotTaken) -> str:
    if not 0 <= snapshot.step <= LARGEST_COUNT:
        return "a snapshot whose step is out of range"
    is_proper = _is_time(snapshot.stall_s) and max(snapshot.bytes, snapshot.unchanged_bytes) <= LARGEST_COUNT
    return "" if is_proper else "a snapshot whose duration or size is out of range"


def _flaw_of_call(call: common.PendingCall) -> str:
    if call.seq > LARGEST_COUNT:
        return "a pending call whose sequence number is out of range"
    are_names_short = max(len(call.group), len(call.op)) <= NAME_CHARACTERS
    are_short = are_names_short and max(len(call.sizes), len(call.dtypes)) <= WORDS_CHARACTERS
    return "" if are_short else "a pending call whose name is too long"


def _is_time(seconds: float) -> bool:
    return 0.0 <= seconds <= LONGEST_S  # NaN is in no range


def _is_module(name: str) -> bool:
    return len(name) <= NAME_CHARACTERS and all(part.isidentifier() for part in name.split("."))
