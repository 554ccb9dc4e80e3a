"""Dumps of pending calls alone, as torch writes them in practice: most ranks wait one or two hops from the cause.

The job has two pipeline stages of four ranks, pairs of tensor parallel ranks, and two groups of each stage.
"""

from collections.abc import Mapping

import pytest

from holdfast_core.diagnosis.devices.causes import CauseKind, Diagnosis
from tests.core.diagnosis.devices.jobs import judge
from tests.support.recorder_documents import Document

RANKS = range(8)
GROUPS = {
    **{str(20 + pair): (2 * pair, 2 * pair + 1) for pair in range(4)},
    **{str(30 + stage): tuple(range(4 * stage, 4 * stage + 4)) for stage in range(2)},
    **{str(40 + stage): tuple(range(4 * stage, 4 * stage + 4)) for stage in range(2)},
    **{str(50 + rank): (rank, rank + 4) for rank in range(4)},
}
OPS = {"2": "_reduce_scatter_base", "3": "all_to_all", "4": "all_reduce"}
DONE = {"2": 4000, "3": 2000, "4": 300}


def dump(rank: int, ahead: Mapping[str, int], *, held: int = 0, transfer: str = "") -> Document:
    """Return the dump of a rank. ``ahead``: calls that it has made in each kind of group and that are pending.

    ``held``: how many calls of tensor pairs and experts are pending that its peers have completed.
    """
    groups = {name: members for name, members in GROUPS.items() if rank in members}
    document = Document(groups, first_record=9000)
    for name in groups:
        if name[0] == "5":
            for _ in range(3 if transfer else 0):
                document.transfer(transfer, rank // 4, 1 - rank // 4, name, state="scheduled")
            document.status(name, 20, -1, 20)
            continue
        done = DONE[name[0]] - (held if name[0] in "23" else 0)
        newest = done + ahead[name[0]]
        for seq in range(done + 1, newest + 1):
            document.pending(OPS[name[0]], name, seq=seq)
        document.status(name, newest, -1, done)
    return document


def job(stage: int, held: Mapping[int, int]) -> Diagnosis:
    """Return the diagnosis of a job in which ranks of a stage are at fault.

    ``held``: culprit -> how many calls it still holds that its peers have completed; 0: its host never came.
    """
    documents = {}
    for rank in RANKS:
        if rank // 4 != stage:
            documents[rank] = dump(rank, {"2": 3, "3": 0, "4": 1}, transfer="recv")
        elif rank in held:
            number = held[rank]
            ahead = {"2": number, "3": number, "4": 0}
            documents[rank] = dump(rank, ahead, held=number, transfer="send" if number else "")
        else:
            documents[rank] = dump(rank, {"2": 9, "3": 5, "4": 2}, transfer="send")
    return judge(documents)


@pytest.mark.parametrize(
    ("stage", "held", "kinds"),
    [
        (1, {6: 0}, [CauseKind.MISSING_RANK]),
        (1, {5: 0, 6: 0}, [CauseKind.MISSING_RANK]),
        (0, {2: 4}, [CauseKind.STUCK_DEVICE]),
        (0, {1: 0, 3: 3}, [CauseKind.MISSING_RANK, CauseKind.STUCK_DEVICE]),
    ],
)
def test_the_ranks_at_fault_are_named_and_no_victim(
    stage: int, held: Mapping[int, int], kinds: list[CauseKind]
) -> None:
    diagnosis = job(stage, held)
    assert ([cause.kind for cause in diagnosis.causes], set(diagnosis.culprits)) == (kinds, set(held))


def test_what_nothing_explains_lists_those_for_whom_others_wait() -> None:
    """Rank 6 has left no dump, and all calls but those with it look alike."""
    cause = judge({rank: dump(rank, {"2": 3, "3": 1, "4": 1}) for rank in RANKS if rank != 6}, 8).causes[-1]
    assert (cause.kind, cause.suspects) == (CauseKind.UNKNOWN, (6,))
