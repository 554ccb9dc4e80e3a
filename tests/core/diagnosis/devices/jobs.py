"""Diagnoses small jobs whose recorders are written by hand."""

from collections.abc import Collection, Mapping

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Diagnosis, Evidence, Place
from holdfast_core.diagnosis.devices.diagnosis import diagnose, group_keys, read_ranks
from holdfast_core.diagnosis.devices.rank_calls import RankCalls
from tests.support.recorder_documents import Document

WORLD = (0, 1, 2, 3)


def steps(count: int = 6, groups: dict[str, tuple[int, ...]] | None = None, first_record: int = 0) -> Document:
    """Return the recorder of a rank that has completed some collectives of the world."""
    document = Document(groups or {"0": WORLD}, first_record=first_record)
    for number in range(count):
        document.call(seq=first_record + number + 1)
    return document


def judge(
    documents: Mapping[int, Document],
    world_size: int | None = None,
    *,
    dead: Collection[int] = (),
    places: Mapping[int, Place] | None = None,
    earlier: Mapping[int, Document] | None = None,
    status_alone: bool = False,
    is_world_known: bool = True,
) -> Diagnosis:
    """Return the diagnosis of a job. ``world_size``: by default as many ranks as documents and dead ranks."""
    places, before = places or {}, earlier or {}
    dumps = {rank: from_document(one.document(entries=not status_alone)) for rank, one in documents.items()}
    evidence = {
        rank: Evidence(
            dumps.get(rank),
            places.get(rank, Place.UNKNOWN),
            rank in dead,
            from_document(before[rank].document()) if rank in before else None,
        )
        for rank in sorted({*dumps, *dead, *places})
    }
    return diagnose(evidence, world_size or len({*dumps, *dead}), is_world_known=is_world_known)


def read_all(
    documents: Mapping[int, Document], world_size: int | None = None, *, dead: Collection[int] = ()
) -> dict[int, RankCalls]:
    """Return what each dump of a job shows by itself, also where they contradict each other."""
    dumps = {rank: from_document(one.document()) for rank, one in documents.items()}
    return read_ranks(dumps, group_keys(dumps, world_size or len({*dumps, *dead})))


def only_cause(diagnosis: Diagnosis) -> Cause:
    """Return the cause of a hang that has one."""
    (cause,) = diagnosis.causes
    return cause


def named(diagnosis: Diagnosis) -> tuple[CauseKind, tuple[int, ...]]:
    """Return the kind of the only cause, and whom it names."""
    cause = only_cause(diagnosis)
    return cause.kind, cause.ranks


def read_calls(document: Document, rank: int = 0, world_size: int = 2) -> RankCalls:
    """Return what the recorder of one rank shows."""
    dumps = {rank: from_document(document.document())}
    return read_ranks(dumps, group_keys(dumps, world_size))[rank]
