"""Shows a simulated case to the reader of dumps and to the core, as production does."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_cli.analysis.host_place import place_of
from holdfast_core.diagnosis.devices.causes import CauseKind, Diagnosis, Evidence
from holdfast_core.diagnosis.devices.diagnosis import diagnose
from tests.simulation.nccl.cases import Case

_TWO_SIDED = (CauseKind.MISMATCHED_CALL, CauseKind.OPPOSITE_ORDER)


@dataclass(frozen=True)
class Named:
    """A diagnosis in the words of the judge."""

    kind: str
    culprits: tuple[int, ...]
    """Ranks that it names; where two sides disagree, both."""


def diagnosis_of(case: Case) -> Diagnosis:
    """Return what the core makes of a case."""
    return diagnose(dict(_evidence(case)), case.world_size)


def named(case: Case) -> Named:
    """Return whom the core names."""
    found = diagnosis_of(case)
    both = {rank for cause in found.causes if cause.kind in _TWO_SIDED for rank in cause.suspects}
    kind = found.causes[0].kind if found.causes else CauseKind.NOTHING_PENDING
    return Named(kind.value, tuple(sorted(both.union(found.culprits))))


def _evidence(case: Case) -> Iterator[tuple[int, Evidence]]:
    for rank in range(case.world_size):
        dump, earlier = case.documents.get(rank), case.earlier.get(rank)
        if dump is not None or rank in case.dead or rank in case.stacks:
            yield (
                rank,
                Evidence(
                    from_document(dump) if dump is not None else None,
                    place=place_of(case.stacks.get(rank, "")),
                    is_dead=rank in case.dead,
                    earlier=from_document(earlier) if earlier is not None else None,
                ),
            )
