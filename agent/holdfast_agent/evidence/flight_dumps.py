"""Collects the ranks' Flight Recorder dumps, and reads the pending calls from them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast_agent.evidence.brief_command import stretched
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.plain_pickle import NotPlainError
from holdfast_agent.evidence.recorder_dump import NoDumpError, check_json, read_dump, shortened
from holdfast_agent.evidence.stacks import STOPPED
from holdfast_agent.evidence.worker_client import WorkerServerError, ask
from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.rank import Rank
from holdfast_base.files import UnfitFileError, read_regular
from holdfast_base.text import reason_of
from holdfast_proto.run_files import flight_recorder_dump
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PendingCall

DUMP_PATIENCE_S = 1.5
"""Time for the dumps. The reporter thread of a hung rank still answers; that of a stopped process does not."""

LARGEST_DUMP_BYTES = 64 << 20
LONGEST_TEXT = 4096


@dataclass
class FoundCalls:
    """What dumps show."""

    pending: list[PendingCall] = field(default_factory=list)
    """Collectives that are incomplete, by the generic recorder."""
    recorders: list[store.RankRecorder] = field(default_factory=list)
    """Recorders of backends on devices, where hosts run ahead: a pending call of theirs alone means little."""


async def collect(
    ranks: Sequence[Rank], folder: EvidenceFolder, errors: Errors, *, on_devices_only: bool = False
) -> FoundCalls:
    """Write the dumps of all ranks that can answer; return what they show. Raises OSError.

    ``on_devices_only``: leave out the generic recorders, and ranks that use no other.

    Torch's worker server is asked first, if the rank has one: it answers even if nothing in the interpreter can.
    """
    wanted = {rank.rank: recorders_of(rank, on_devices_only=on_devices_only) for rank in ranks}
    asked = [rank for rank in ranks if rank.is_alive and (wanted[rank.rank] or not on_devices_only)]
    running = [rank for rank in asked if rank.process_state not in STOPPED]
    answers = await asyncio.gather(*(fetch(rank, wanted[rank.rank], folder) for rank in running))
    unserved = dict(zip((one.rank for one in running), answers, strict=True))
    capture = session.CaptureEvidence(directory=str(folder.path))
    acks = {
        rank.rank: rank.command(session.RankCommand(capture_evidence=capture))
        for rank in running
        if unserved[rank.rank]
    }
    limit_s = stretched(DUMP_PATIENCE_S)
    if acks:
        await asyncio.wait(acks.values(), timeout=limit_s)
    found = FoundCalls()
    for rank in asked:
        for one in rank.recorders:
            if one.source == common.RECORDER_SOURCE_NONE:
                folder.miss(file_of(rank, one), f"torch has no recorder for backend {one.backend}")
        for name in sorted(map(partial(file_of, rank), wanted[rank.rank])):
            try:
                if name == flight_recorder_dump(rank.rank):
                    named, junk = pending_calls(folder.path / name, rank.rank)
                    found.pending += named
                    if junk:
                        errors.refuse("recorders", "entries of a Flight Recorder dump that make no sense")
                        folder.miss(name, f"{junk} of its entries make no sense")
                else:
                    found.recorders.append(_recorder(rank.rank, folder.path / name))
            except FileNotFoundError:
                reasons = unserved.get(rank.rank, {}).get(name, ""), _why_missing(acks.get(rank.rank), limit_s)
                folder.miss(name, "; ".join(filter(None, reasons)))
            except (OSError, ValueError, RecursionError) as error:
                folder.miss(name, error)
    return found


def _recorder(rank: int, dump: Path) -> store.RankRecorder:
    if dump.stat().st_size > LARGEST_DUMP_BYTES:
        raise ValueError(f"it is larger than {LARGEST_DUMP_BYTES >> 20} MiB")
    return store.RankRecorder(rank=rank, dump=shortened(read_dump(dump.read_bytes())))


def _why_missing(ack: "asyncio.Future[session.CommandAck] | None", limit_s: float) -> str:
    if ack is None:
        return "the process is stopped"
    if ack.cancelled():
        return "the rank has no session with its agent"
    if not ack.done():
        return f"no answer within {limit_s:g} s"
    return ack.result().detail or "the rank has written no dump"


def pending_calls(dump: Path, rank: int) -> tuple[list[PendingCall], int]:
    """Return the collectives that a rank had not completed when it wrote its dump, and the number of bad entries.

    Dumps differ between versions of torch, and a dying rank may write anything, so entries that make no sense are
    skipped. Raises OSError if the dump cannot be read, NoDumpError if the file is no dump.
    """
    try:
        data = read_regular(dump, LARGEST_DUMP_BYTES)
    except UnfitFileError as error:
        raise NoDumpError(error.strerror) from None
    trace = _document(data.decode(errors="replace"))
    completed, junk = _completed(trace.get("pg_status"))
    entries = trace.get("entries")
    if not isinstance(entries, list):
        return [], junk + (entries is not None)
    calls = []
    for entry in entries:
        try:
            is_later = entry["collective_seq_id"] > completed.get(entry["pg_id"], 0)
            # Asynchronous calls complete in any order: one may be complete although an earlier one is not.
            if is_later and not entry["is_p2p"] and entry.get("retired") is not True:
                calls.append(_call(entry, rank))
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
            junk += 1
    return calls, junk


def _document(text: str) -> dict[str, Any]:
    """Return the object in a dump. Raises NoDumpError."""
    try:
        check_json(text.encode())
        found = json.loads(text)
    except NotPlainError as error:
        raise NoDumpError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise NoDumpError(f"it is no complete JSON: {reason_of(error)}") from None
    if not isinstance(found, dict):
        raise NoDumpError("it is no dump of a Flight Recorder")
    return found


def _completed(status: object) -> tuple[dict[int, int], int]:
    """Return process group -> newest completed collective, and the number of groups that make no sense."""
    completed, junk = {}, 0
    for key, group in status.items() if isinstance(status, dict) else ():
        try:
            completed[int(key)] = int(group["last_completed_collective"])
        except (LookupError, TypeError, ValueError, OverflowError):
            junk += 1
    return completed, junk


def _call(entry: dict[str, Any], rank: int) -> PendingCall:
    return PendingCall(
        rank=rank,
        group=entry["process_group"][0],
        seq=entry["collective_seq_id"],
        op=entry["profiling_name"],
        sizes=_text(entry.get("input_sizes")),
        dtypes=_text(entry.get("input_dtypes")),
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)[:LONGEST_TEXT]


SERVER_PATIENCE_S = 1.0
"""Time for the dumps of one rank. A dump of 20,000 entries takes half a second."""

_STATUS_ONLY = "it shows no single call: a full dump of NCCL's recorder can crash a rank on torch before 2.14"

_GENERIC = (common.RECORDER_SOURCE_UNSPECIFIED, common.RECORDER_SOURCE_GENERIC)


def file_of(rank: Rank, recorder: common.Recorder) -> str:
    """Return the name of the file of evidence with the dump of a recorder."""
    return flight_recorder_dump(rank.rank, "" if recorder.source in _GENERIC else recorder.backend)


def recorders_of(rank: Rank, *, on_devices_only: bool = False) -> list[common.Recorder]:
    """Return the recorders that a rank uses. A rank that has named none yet can only use the generic one."""
    used = [one for one in rank.recorders if one.source != common.RECORDER_SOURCE_NONE]
    if on_devices_only:
        return [one for one in used if one.source not in _GENERIC]
    return used if rank.recorders else [common.Recorder(source=common.RECORDER_SOURCE_GENERIC, backend="gloo")]


async def fetch(rank: Rank, recorders: Sequence[common.Recorder], folder: EvidenceFolder) -> dict[str, str]:
    """Write the dumps of a rank's recorders; return file -> reason for those that it could not get."""
    if not rank.worker_socket:
        return dict.fromkeys((file_of(rank, one) for one in recorders), "")
    results = await asyncio.gather(*(_fetch_one(rank, one, folder) for one in recorders))
    return {file_of(rank, one): why for one, why in zip(recorders, results, strict=True) if why}


async def _fetch_one(rank: Rank, recorder: common.Recorder, folder: EvidenceFolder) -> str:
    """Write one dump; return why it is missing, "" if it is not."""
    name = file_of(rank, recorder)
    try:
        dump = await ask(rank.worker_socket, rank.pid, _handler(recorder), stretched(SERVER_PATIENCE_S))
        text = await asyncio.to_thread(_checked, dump)
    except (WorkerServerError, NoDumpError) as error:
        return reason_of(error)
    folder.write(name, text)
    if _is_status_only(recorder):
        folder.miss(name, _STATUS_ONLY)
    return ""


def _handler(recorder: common.Recorder) -> str:
    if recorder.source == common.RECORDER_SOURCE_NCCL:
        return f"dump_nccl_trace_json?includecollectives={'false' if _is_status_only(recorder) else 'true'}"
    if recorder.source == common.RECORDER_SOURCE_BACKEND:
        return f"fr_trace_json?backend={recorder.backend}"
    return "fr_trace_json"


def _is_status_only(recorder: common.Recorder) -> bool:
    return recorder.source == common.RECORDER_SOURCE_NCCL and not recorder.full_dumps


def _checked(dump: bytes) -> str:
    text = dump.decode(errors="replace")
    _document(text)
    return text
