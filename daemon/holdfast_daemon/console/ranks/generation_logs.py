"""The end of a rank's log, of any generation: a rank that died is restarted, and an older log explains its death."""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from holdfast_core.model import CoreState, places_of
from holdfast_daemon.console.pages.run_frame import newest_first
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_daemon.incidents.evidence_files import generations_with_log
from holdfast_proto import run_files
from holdfast_proto.v1.agent_record_pb2 import AgentRecord

MOST_LOG_BYTES = 256 * 1024
_MOST_RECORDS = 64
_MOST_RECORD_BYTES = 16 * 2**20
_CUT = "… "
"""Before the rest of a line whose beginning is not shown."""


def log_tail(
    state: CoreState, number: int, directory: Path, wanted: int, generation: int | None = None, *, ended: bool = False
) -> dict[str, Any]:
    """Return the end of a rank's log, or a note that says where it is, and the generations that have one.

    ``directory`` is that of the daemon, ``wanted`` a number of bytes. ``generation`` None: the newest. ``ended``: the
    run's agents are gone. Raises RefusedRequestError if nothing is known of the rank, or if the generation has not
    begun.
    """
    current = state.record.generation
    if generation is not None and not 1 <= generation <= current:
        raise RefusedRequestError(
            404, f"run {state.record.run} has no generation {generation}: the newest is {current}"
        )
    node = next((name for name, _ in places_of(state, number)), "")
    found = () if state.observes else generations_with_log(directory, number, current)
    if not node and not found:
        raise RefusedRequestError(404, f"nothing is known of rank {number} in generation {current}")
    if generation is None:
        generation = current if node else found[0]
    answer = {
        "text": "",
        "path": "",
        "note": "",
        "generation": generation,
        "newest_generation": current,
        "generations": _offered(state, number, {*found, generation}),
    }
    run, here = state.record.run, node if generation == current else ""
    if state.observes:
        return answer | {"note": "another launcher has started the ranks: look where that launcher prints"}
    option = "" if generation == current else f" --generation {generation}"
    where = f"on node {node}" if generation == current else "on the node that the rank was on"
    elsewhere = f"{where}: `holdfast logs --rank {number}{option}` shows it there"
    if not (_is_alone(directory, run) if ended else _keeps_logs(directory, run, here)):
        return answer | {"note": f"the log is {elsewhere}"}
    path = run_files.rank_log(directory, generation, number)
    try:
        return answer | {"text": read_end(directory, path, max(1, min(wanted, MOST_LOG_BYTES))), "path": str(path)}
    except OSError as error:
        note = f"the log cannot be read here ({error.strerror}): it may be {elsewhere}"
        return answer | {"path": str(path), "note": note}


def read_end(folder: Path, path: Path, most: int) -> str:
    """Return the last ``most`` bytes of a regular file within ``folder`` as text.

    It begins with the first whole line, unless that would leave out half of the bytes or more: then it begins with the
    end of a long line, after a mark. No link is followed below the folder. Raises OSError.
    """
    if path.resolve() != folder.resolve() / path.relative_to(folder):
        raise OSError(0, "a link is in its path")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        begin = max(0, status.st_size - most)
        file.seek(max(0, begin - 1))
        data = file.read(most + min(begin, 1))
    if begin == 0:
        return data.decode(errors="replace")
    if data[:1] == b"\n":  # the bytes begin with a whole line
        return data[1:].decode(errors="replace")
    whole = data[1:].partition(b"\n")[2]
    if 2 * len(whole) >= most:
        return whole.decode(errors="replace")
    # A character may be cut in two: its rest is left out.
    return _CUT + data[1:].lstrip(bytes(range(0x80, 0xC0))).decode(errors="replace")


def _offered(state: CoreState, number: int, generations: set[int]) -> list[dict[str, Any]]:
    """Return the generations to choose from, the newest first, each with the incidents that name the rank."""
    named: dict[int, list[str]] = {}
    for name in newest_first(state):
        incident = state.incidents[name]
        if number in incident.verdict.culprits:
            named.setdefault(incident.generation, []).append(name)
    return [{"generation": one, "incidents": named.get(one, [])} for one in sorted(generations, reverse=True)]


def _keeps_logs(directory: Path, run: str, node: str) -> bool:
    """Whether the agent of a node, or of any for "", keeps a run's files here: other runs' logs have the same names."""
    return any(_run_of(record) == run for record in _agent_records(directory, node))


def _is_alone(directory: Path, run: str) -> bool:
    """Whether a folder has no other runs. Agents remove their records when they end, and do not remove the logs."""
    histories = run_files.history(directory, run).parent.glob("*.sqlite")
    return {path.stem for path in histories if not run_files.is_set_aside_history(path)} == {run}


def _agent_records(directory: Path, node: str) -> Iterator[Path]:
    if node:
        return iter((run_files.agent_record(directory, node),))
    return islice(directory.glob(run_files.AGENT_RECORDS), _MOST_RECORDS)


def _run_of(record: Path) -> str:
    try:
        with record.open("rb") as file:
            return AgentRecord.FromString(file.read(_MOST_RECORD_BYTES)).run
    except (OSError, DecodeError):
        return ""
