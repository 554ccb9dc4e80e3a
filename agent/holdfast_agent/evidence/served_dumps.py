"""Fetches a rank's recorder dumps from torch's worker server: one file for each recorder, because their ids collide."""

import asyncio
import json

from holdfast_agent.evidence.busy_node import stretched
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.recorder_dump import check_json
from holdfast_agent.evidence.worker_server import WorkerServerError, ask
from holdfast_agent.processes.rank import Rank
from holdfast_base.text import reason_of
from holdfast_proto.run_files import flight_recorder_dump
from holdfast_proto.v1 import common_pb2 as common

SERVER_PATIENCE_S = 1.0
"""Time for the dumps of one rank. A dump of 20,000 entries takes half a second."""

_STATUS_ONLY = "it shows no single call: a full dump of NCCL's recorder can crash a rank on torch before 2.14"

_GENERIC = (common.RECORDER_SOURCE_UNSPECIFIED, common.RECORDER_SOURCE_GENERIC)


def file_of(rank: Rank, recorder: common.Recorder) -> str:
    """Return the name of the file of evidence with the dump of a recorder."""
    return flight_recorder_dump(rank.rank, "" if recorder.source in _GENERIC else recorder.backend)


def recorders_of(rank: Rank) -> list[common.Recorder]:
    """Return the recorders that a rank uses. A rank that has named none yet can only use the generic one."""
    used = [one for one in rank.recorders if one.source != common.RECORDER_SOURCE_NONE]
    return used if rank.recorders else [common.Recorder(source=common.RECORDER_SOURCE_GENERIC, backend="gloo")]


async def fetch(rank: Rank, folder: EvidenceFolder) -> dict[str, str]:
    """Write the dumps of all recorders that a rank uses; return file -> reason for those that it could not get."""
    recorders = recorders_of(rank)
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
    except (WorkerServerError, ValueError, RecursionError) as error:
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
    check_json(dump)
    text = dump.decode(errors="replace")
    if not isinstance(json.loads(text), dict):
        raise ValueError("it is no dump of a Flight Recorder")
    return text
