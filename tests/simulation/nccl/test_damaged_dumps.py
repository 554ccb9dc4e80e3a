"""Dumps of simulated hangs that are damaged, mixed up and of the wrong ranks: any verdict will do, but no exception."""

import copy
import random
from typing import Any

import pytest

from holdfast_agent.evidence.recorder_dump import NoDumpError, from_document
from holdfast_cli.analysis.diagnosis_report import as_lines, as_object, diagnose_dumps
from holdfast_cli.analysis.dump_folder import Dumps
from holdfast_proto.v1.recorder_pb2 import RecorderDump
from tests.simulation.nccl.cases import one_case

NUMBERS = ("collective_seq_id", "p2p_seq_id", "record_id", "pg_id")
NAMES = ("nccl:send 0->9", "nccl:recv 3<-1", "nccl:coalesced", "gloo:all_reduce", "c10d:allreduce")
RANKS = 20


def damage(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a document in which some calls and groups are others."""
    damaged = copy.deepcopy(document)
    for entry in damaged.get("entries", ()):
        if chance.random() < 0.03:
            entry[chance.choice(NUMBERS)] = chance.choice((0, 1, 7, 10**6))
        if chance.random() < 0.03:
            entry["process_group"] = [chance.choice(("0", "1", "other")), "undefined"]
        if chance.random() < 0.02:
            entry["profiling_name"] = chance.choice(NAMES)
        if chance.random() < 0.02:
            entry["retired"] = not entry["retired"]
    for group in damaged["pg_config"].values():
        if chance.random() < 0.1:
            group["ranks"] = str([chance.randrange(RANKS) for _ in range(3)])
    return damaged


def damaged_dumps(chance: random.Random) -> dict[int, RecorderDump]:
    """Return the dumps of one simulated hang, each under the number of a random rank."""
    case = one_case(f"damaged/{chance.randrange(10**6)}", most_ranks=16)
    dumps = {}
    for document in filter(None, case.documents.values()):
        try:
            dumps[chance.randrange(RANKS)] = from_document(damage(document, chance))
        except NoDumpError:
            continue
    return dumps


@pytest.mark.parametrize("seed", range(6))
def test_damaged_dumps_raise_nothing(seed: int) -> None:
    chance = random.Random(seed)
    judged = 0
    while judged < 20:
        found = Dumps(damaged_dumps(chance))
        if not found.dumps:
            continue
        dead = frozenset(rank for rank in range(RANKS) if chance.random() < 0.05)
        diagnosis = diagnose_dumps(found, dead=dead, world_size=chance.choice((None, 64)))
        assert list(as_lines(found, diagnosis)) and as_object(found, diagnosis)["dumps"] == len(found.dumps)
        judged += 1
