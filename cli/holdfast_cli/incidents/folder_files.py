"""The files in an incident's folder: read for people, or packed into one file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseError

from holdfast_base.files import read_regular, replacement
from holdfast_daemon.incidents.evidence_files import file_names, pack_incident
from holdfast_proto.limits import is_count
from holdfast_proto.message_json import from_json
from holdfast_proto.run_files import BLACK_BOX_COPIES, FINDINGS
from holdfast_proto.v1.common_pb2 import PendingCall
from holdfast_proto.v1.store_pb2 import EvidenceCaptured, Incident, StackSummary

_MOST_BYTES = 64 << 20
"""A copy of a black box has some 100 kB; what an agent has found in the dumps of its ranks has more."""


@dataclass(frozen=True)
class BlackBoxLine:
    """Progress of one rank. ``groups``: name, newest enqueued and newest completed seq."""

    rank: int
    step: int
    phase: int
    groups: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class IncidentFiles:
    """Contents of an incident's folder. Everything is empty if the folder is not on this machine."""

    names: tuple[str, ...]
    """Relative to the folder, sorted."""
    black_boxes: tuple[BlackBoxLine, ...]
    stacks: tuple[StackSummary, ...]
    pending: tuple[PendingCall, ...]


def read_files(folder: Path) -> IncidentFiles:
    """Read an incident's folder; what is damaged is listed and not shown."""
    findings = list(_findings(folder))
    return IncidentFiles(
        names=tuple(file_names(folder)),
        black_boxes=tuple(_black_boxes(folder)),
        stacks=tuple(stack for found in findings for stack in found.stacks),
        pending=tuple(call for found in findings for call in found.pending),
    )


def export_incident(incident: Incident, folder: Path, target: Path) -> int:
    """Write story and files as a .tar.gz; return how many files are in it. Raises OSError."""
    with replacement(target) as partial, partial.open("wb") as file:
        return pack_incident(incident, folder, file)


def _black_boxes(folder: Path) -> Iterator[BlackBoxLine]:
    for box in _objects(folder, BLACK_BOX_COPIES):
        try:
            groups = tuple((str(each["group"]), each["enqueued"], each["completed"]) for each in box["groups"])
            line = BlackBoxLine(box["rank"], box["step"], box["phase"], groups)
        except (LookupError, TypeError):
            continue  # of another version, or damaged
        step = 0 if line.step == -1 else line.step
        numbers = (line.rank, step, line.phase, *(number for _, *seqs in groups for number in seqs))
        if all(map(is_count, numbers)):
            yield line


def _findings(folder: Path) -> Iterator[EvidenceCaptured]:
    for found in _objects(folder, FINDINGS):
        try:
            yield from_json(found, EvidenceCaptured())
        except (ParseError, ValueError, TypeError, AttributeError):
            continue


def _objects(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(pattern)):
        try:
            found = json.loads(read_regular(path, _MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            continue  # the disk was full, and the file was cut off
        if isinstance(found, dict):
            yield found
