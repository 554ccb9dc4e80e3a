"""Incidents: the list, the story of one, its evidence, and all of it in one file."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from holdfast_base.text import reason_of
from holdfast_core.model import CoreState
from holdfast_core.reading.attention import can_be_acknowledged
from holdfast_core.texts.advice import next_line, runbook
from holdfast_core.texts.incident_lines import enum_phrase, verdict_label
from holdfast_daemon.console.pages.run_frame import incident_row, newest_first
from holdfast_daemon.console.pages.sentences import reasons
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_daemon.incidents.evidence_files import evidence_files, open_evidence, pack_incident
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

MOST_WAITS = 256
"""Waits that are sent. Verdicts of older versions hold as many; newer ones hold a few of each call."""
BLOCK_BYTES = 256 * 1024
_IN_MEMORY_BYTES = 4 * 2**20
"""Larger archives wait on disk while they are sent."""


def incident_list(state: CoreState | None) -> dict[str, Any]:
    """Return all incidents, the newest first."""
    rows = [incident_row(state.incidents[name]) for name in newest_first(state)] if state is not None else []
    return {"incidents": rows}


def find_incident(state: CoreState | None, identity: str) -> store.Incident:
    """Return an incident. Raises RefusedRequestError."""
    found = state.incidents.get(identity) if state is not None else None
    if found is None:
        raise RefusedRequestError(404, f"the run has no incident {identity[:80]!r}")
    return found


def story(state: CoreState, incident: store.Incident, folder: Path) -> dict[str, Any]:
    """Return an incident's story. ``folder``: its folder on this machine, which need not exist."""
    verdict = incident.verdict
    return incident_row(incident) | {
        "kind_text": verdict_label(incident),
        "generation": incident.generation,
        "state_text": enum_phrase(store.IncidentState, incident.state),
        "why": reasons(incident),
        "next": next_line(incident, state.spec),
        "phase": enum_phrase(common.Phase, verdict.phase) if verdict.phase else "",
        "confidence_ratio": verdict.confidence_ratio,
        "last_progress_unix_s": incident.last_progress_unix_s or None,
        "lost_steps": incident.lost_steps,
        "resumed_step": incident.resumed_step,
        "actions": [{"unix_s": action.unix_s, "what": action.what} for action in incident.actions],
        "waits": [
            {
                "waiter": edge.waiter,
                "awaited": edge.awaited,
                "group": edge.group,
                "seq": edge.seq,
                "op": edge.op,
                "waiters": edge.waiters,
            }
            for edge in verdict.waits[:MOST_WAITS]
        ],
        "waiting_ranks": verdict.waiting_ranks or len({edge.waiter for edge in verdict.waits}),
        "calls": list(verdict.calls),
        "places": [{"rank": place.rank, "node": place.node, "pid": place.pid} for place in incident.culprits],
        "can_be_acknowledged": can_be_acknowledged(state, incident),
        "evidence": [{"name": name, "bytes": size} for name, size in evidence_files(folder)],
        "runbook": runbook(verdict.kind),
    }


def open_listed(folder: Path, name: str) -> IO[bytes]:
    """Open a file of an incident's evidence. Raises RefusedRequestError unless the folder lists it."""
    try:
        return open_evidence(folder, name)
    except OSError:
        raise RefusedRequestError(
            404, f"the incident's folder on the daemon's machine has no file {name[:80]!r}"
        ) from None


def archive(incident: store.Incident, folder: Path) -> IO[bytes]:
    """Return story and evidence as a .tar.gz, as `holdfast incidents export` writes it."""
    packed = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 (blocks() closes it)
    try:
        pack_incident(incident, folder, packed)
    except OSError as error:
        packed.close()
        raise RefusedRequestError(503, f"the incident cannot be packed: {reason_of(error)}") from None
    packed.seek(0)
    return packed


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file's contents, and close it at the end."""
    with file:
        while block := file.read(BLOCK_BYTES):
            yield block
