"""Prints what a dump of torch's NCCL recorder shows at a moment, in its JSON and its pickle form.

Sources: FlightRecorderDetail.hpp of torch 2.13 (``dump_json``, ``dump``, ``getCollectiveTrace``, ``retire_id``), the
headers of dump versions 2.3, 2.4 and 2.7, and ``Watchdog::runLoop`` and ``workEnqueue`` of ProcessGroupNCCL.cpp.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from tests.simulation.nccl.recorder import Entry, Recorder

WATCHDOG_S = 0.1
"""Time between two looks of the watchdog of a group (``kWatchdogThreadSleepMillis``)."""
VERSIONS = ("2.3", "2.4", "2.7", "2.9", "2.10")
STARTED_NS = 1_790_000_000_000_000_000
"""Wall clock at the start of the machine."""

_FRAMES = (("all_reduce", "torch/distributed/distributed_c10d.py", 3156), ("train_step", "train.py", 88))

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a rank's recorder is set and read."""

    pickled: bool = False
    version: str = "2.10"
    ring: int = 2000
    """``TORCH_FR_BUFFER_SIZE``. 0: the recorder is off, and a dump is empty."""
    timing: bool = False
    """``TORCH_NCCL_ENABLE_TIMING``."""
    only_active: bool = False
    with_entries: bool = True
    """False: ``includeCollectives=False``, so only ``pg_status`` and ``pg_config`` are there."""
    with_frames: bool = False
    """Stacks of the calls, in the pickle form only."""
    watchdog_phase_s: float = 0.03
    watchdog_stuck_s: float = inf
    """When the watchdog stopped looking."""
    timeout_ms: int = 600_000
    wall_ns: int = STARTED_NS


def clock_ns(form: Form, at_s: float) -> int:
    """Return the wall clock at a moment of the machine."""
    return form.wall_ns + round(at_s * 1e9)


def visible(recorder: Recorder, form: Form, at_s: float) -> list[Entry]:
    """Return the entries that a dump holds: the newest of the ring, without those that ``onlyActive`` leaves out."""
    made = [entry for entry in recorder.entries if entry.created_s <= at_s]
    kept = made[-form.ring :] if form.with_entries and form.ring else []
    return [entry for entry in kept if not (form.only_active and looks_completed(entry, at_s))]


def looks_completed(entry: Entry, at_s: float) -> bool:
    """Return whether the query of the end event is true, which is a lie while the call has not returned."""
    operation = entry.operation
    return operation is not None and (entry.returned_s > at_s or operation.done_s <= at_s)


def retired_s(entry: Entry, form: Form) -> float:
    """Return when the watchdog retires an entry. Infinite: never."""
    operation = entry.operation
    if operation is None or not entry.watched:
        return inf
    return _seen_s(max(operation.done_s, entry.returned_s), form)


def _seen_s(happened_s: float, form: Form) -> float:
    """Return when the watchdog next looks."""
    if happened_s == inf:
        return inf
    looks_s = form.watchdog_phase_s + ceil((happened_s - form.watchdog_phase_s) / WATCHDOG_S) * WATCHDOG_S
    return looks_s if looks_s <= form.watchdog_stuck_s else inf


def document(recorder: Recorder, form: Form, at_s: float) -> Document:
    """Return the dump of a rank at a moment, as ``json.loads`` or ``pickle.loads`` gives it."""
    number = int(form.version.split(".")[1])
    knows_library = bool(recorder.named_s) and form.ring > 0
    result: Document = {"version": form.version}
    if number >= 10:
        result["comm_lib_version"] = "2.30.7" if knows_library else ""
    elif number >= 7:
        result["nccl_version"] = "2.27.5" if knows_library else ""
    result["pg_config"] = {
        recorder.groups[group].name: {
            "name": recorder.groups[group].name,
            "desc": recorder.groups[group].desc,
            "ranks": "[" + ", ".join(map(str, recorder.groups[group].members)) + "]",
        }
        for group, named_s in recorder.named_s.items()
        if named_s <= at_s and form.ring
    }
    result["pg_status"] = dict(_statuses(recorder, form, at_s))
    if form.with_entries:
        entries = [_entry(recorder, entry, form, at_s) for entry in visible(recorder, form, at_s)]
        if entries or form.pickled:  # ``dump_json`` leaves an empty list out
            result["entries"] = entries
    if not form.pickled:
        result["nccl_comm_state"] = {}
    return result


def _statuses(recorder: Recorder, form: Form, at_s: float) -> Iterator[tuple[str, Document]]:
    """Yield ``pg_status``: one number for collectives and messages, of the work that was last handled."""
    groups: dict[int, list[Entry]] = {}
    for entry in recorder.entries:
        if entry.created_s <= at_s and form.ring:
            groups.setdefault(entry.group, []).append(entry)
    for group, entries in groups.items():
        enqueued = started = completed = -1
        newest = (-inf, -1)
        for index, entry in enumerate(entries):
            if not entry.watched or entry.operation is None or entry.returned_s > at_s:
                continue
            enqueued = entry.status_number
            if form.timing and _seen_s(max(entry.operation.start_s, entry.returned_s), form) <= at_s:
                started = max(started, entry.status_number)
            seen_s = retired_s(entry, form)
            if seen_s <= at_s and (seen_s, index) > newest:
                newest, completed = (seen_s, index), entry.status_number
        kinds = {"enqueued": enqueued, "started": started, "completed": completed}
        numbers = {f"last_{kind}_collective": number for kind, number in kinds.items()}
        # Keys are strings in both forms, values only in JSON.
        yield str(recorder.ids[group]), dict(numbers) if form.pickled else {k: str(v) for k, v in numbers.items()}


def _entry(recorder: Recorder, entry: Entry, form: Form, at_s: float) -> Document:
    group, operation = recorder.groups[entry.group], entry.operation
    seen_s = retired_s(entry, form)
    retired = seen_s <= at_s
    completed = looks_completed(entry, at_s)
    # The start event is recorded only with timing, and its query is true as soon as the stream is there.
    started = form.timing and operation is not None and (operation.start_s <= at_s or entry.returned_s > at_s)
    noticed_ns = clock_ns(form, seen_s if retired else at_s)  # a dump looks by itself
    missing = None if form.pickled else 0
    name = (group.name, group.desc)
    printed: Document = {
        "record_id": entry.record_id,
        "pg_id": recorder.ids[entry.group],
        "process_group": name if form.pickled else list(name),
        "collective_seq_id": entry.collective,
        "p2p_seq_id": entry.message,
        "op_id": entry.op_id,
        "profiling_name": entry.name,
        "time_created_ns": clock_ns(form, entry.created_s),
        "input_sizes": [list(size) for size in entry.inputs],
        "input_dtypes": ["Float"] * len(entry.inputs),
        "output_sizes": [list(size) for size in entry.outputs],
        "output_dtypes": ["Float"] * len(entry.outputs),
        "state": "completed" if completed else "started" if started else "scheduled",
        "time_discovered_started_ns": noticed_ns if started else missing,
        "time_discovered_completed_ns": noticed_ns if completed else missing,
        "retired": retired,
        "timeout_ms": form.timeout_ms,
        "is_p2p": entry.is_p2p,
    }
    if form.version == "2.10":
        printed["thread_name"], printed["thread_id"] = "python", "140234"
    if form.timing and retired and operation is not None:
        printed["duration_ms"] = (operation.done_s - operation.start_s) * 1000
    if form.with_frames and form.pickled:
        printed["frames"] = [{"name": name, "filename": file, "line": line} for name, file, line in _FRAMES]
    return printed
