"""Reads what a report of NCCL's RAS says of the ranks of a run.

RAS proves nothing alone. It counts what hosts launch, not what completes, and does not look at all processes at one
instant (NCCL 2.30.7, src/plugin/profiler.cc and src/ras/collectives.cc). So counts that differ a little are normal.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast_agent.evidence.ras_client import RasError, address_of, ask
from holdfast_agent.evidence.recorder_dump import printable
from holdfast_base.processes import environment
from holdfast_base.text import reason_of
from holdfast_proto.limits import MOST_WITNESS_WORDS, WITNESS_WORDS_CHARACTERS
from holdfast_proto.v1.session_pb2 import RankWords

PATIENCE_S = 12.0
"""Time for an answer. RAS itself waits up to 10 s for processes that do not answer."""

_LEAST_OBJECT_BYTES = 64
"""NCCL writes 100 bytes and more for each list or object. A report with more of them would only take memory."""

_LOST_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')
"""NCCL 2.28.7 and 2.28.9 leave out a comma in each missing rank (``jsonWriteMissingRank``); 2.29.2 has it."""

_LARGEST_MINORITY = 0.25
"""Share of ranks up to which the others are a clear majority."""

_SUCCESS, _IN_PROGRESS = 0, 7
_ERRORS = {
    1: "unhandled error of the GPU",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
    8: "timeout",
}
"""``ncclResult_t`` of nccl.h, NCCL 2.30.7."""

_Json = dict[str, Any]
_Process = tuple[str, int]
"""Host and pid. NCCL names a host by the address of its network."""


def ask_of(pid: int, pids: Sequence[int]) -> list[RankWords]:
    """Ask the RAS that a rank's process takes part in; see :func:`witness_reports`. It blocks: call it in a thread.

    Raises:
        RasError: there is no usable report.
    """
    try:
        variables = [variable.decode(errors="replace") for variable in environment(pid)]
    except OSError as error:
        raise RasError(reason_of(error)) from None
    address = address_of(dict(one.split("=", 1) for one in variables if "=" in one))
    return witness_reports(ask(address, timeout_s=PATIENCE_S), pids) if address is not None else []


def witness_reports(report: bytes, pids: Sequence[int]) -> list[RankWords]:
    """Return at most eight facts that RAS reports of a run's ranks; none: nothing is wrong, or it is another job.

    Jobs of one node share the port of RAS. So a report counts only if it has a communicator of the whole world, in
    which every process that answers has the pid of its rank.

    Args:
        report: the answer of RAS, as JSON.
        pids: pid of each rank of the run, in their order.

    Raises:
        RasError: it is no such report.
    """
    if report.count(b"{") + report.count(b"[") > 16 + len(report) // _LEAST_OBJECT_BYTES:
        raise RasError("it has more lists and objects than a report")
    try:
        document: _Json = json.loads(_LOST_COMMA.sub(r"\1,\2", report.decode()))
        communicators: list[_Json] = document["communicators"]
        ranks = next(filter(None, (_ranks_of_world(one, pids) for one in communicators)), {})
        found = [fact for one in communicators for fact in _facts(one, ranks)]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RasError(f"it is no report of this version: {type(error).__name__}") from None
    told: dict[str, set[int]] = {}
    for numbers, text in found:
        told.setdefault(printable(text)[:WITNESS_WORDS_CHARACTERS], set()).update(numbers)
    return [RankWords(ranks=sorted(told[text]), text=text) for text in list(told)[:MOST_WITNESS_WORDS]]


def _ranks_of_world(one: _Json, pids: Sequence[int]) -> dict[_Process, int]:
    """Return process -> rank if a communicator is that of the whole world; else nothing."""
    members = [*one["ranks"], *one["missing_ranks"]]
    found = {_process(each): each["rank"] for each in members if each["pid"] > 0}
    is_world = one["size"] == len(pids) and len(one["ranks"]) > 0
    is_known = is_world and all(0 <= rank < len(pids) and pids[rank] == pid for (_, pid), rank in found.items())
    return found if is_known else {}


def _process(member: _Json) -> _Process:
    return member["host"], member["pid"]


def _facts(one: _Json, ranks: dict[_Process, int]) -> Iterator[tuple[list[int], str]]:
    """Yield the ranks of each fact on a communicator, and its text: the gravest first."""

    def of(members: list[_Json]) -> list[int]:
        return [ranks[_process(each)] for each in members if _process(each) in ranks]

    members, missing = one["ranks"], one["missing_ranks"]
    if not of(members):
        return
    where = f"a communicator of {one['size']:d} ranks"
    states = [(each, each["status"]["considered_dead"], each["status"]["unresponsive"]) for each in missing]
    codes = sorted({code for each in members for code in _codes(each)} - {_SUCCESS, _IN_PROGRESS})
    facts = [
        ([each for each, is_dead, _ in states if is_dead], "its process is taken for dead"),
        ([each for each, is_dead, is_silent in states if is_silent and not is_dead], "its process gives no answer"),
        *((_with(members, code), f"error {code:d} ({_ERRORS.get(code, '?')}) in {where}") for code in codes),
        ([each for each in members if each["status"]["abort_flag"]], f"has aborted {where}"),
        (_with(members, _IN_PROGRESS), f"still sets up {where}"),
        *_counts(members, where),
        ([each for each, *is_lost in states if not any(is_lost)], f"answers, but has closed or not made {where}"),
    ]
    for concerned, text in facts:
        if of(concerned):
            yield of(concerned), text


def _with(members: list[_Json], code: int) -> list[_Json]:
    return [each for each in members if code in _codes(each)]


def _codes(member: _Json) -> tuple[int, int]:
    return member["status"]["init_state"], member["status"]["async_error"]


def _counts(members: list[_Json], where: str) -> Iterator[tuple[list[_Json], str]]:
    """Yield a kind of call that few have launched another number of times than all others, which agree."""
    for kind in sorted({kind for each in members for kind in each["collective_counts"]}):
        counted = [each for each in members if kind in each["collective_counts"]]
        launched = Counter(each["collective_counts"][kind] for each in counted).most_common()
        if len(launched) != 2 or launched[1][1] > _LARGEST_MINORITY * len(counted):
            continue
        (usual, _), (other, _) = launched
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind[:64]).lower()
        few = [each for each in counted if each["collective_counts"][kind] == other]
        yield few, f"has launched {other:d} {name} calls in {where}, the others {usual:d}"
