"""What a report of NCCL's RAS says of the ranks of a run: who does not answer, and who differs from all others."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast_agent.evidence.ras_client import RasError
from holdfast_agent.evidence.ras_report import ask_of, witness_reports
from tests.support.ras_server import REPORT, served, speaking

PIDS = [1524344, 1524345]
"""Of the two ranks in REPORT."""
PID_OF_0 = 70

SILENT = (1, "its process gives no answer")
FAILED = [
    (0, "error 6 (remote error) in a communicator of 2 ranks"),
    (0, "has aborted a communicator of 2 ranks"),
]


def facts(report: bytes, pids: list[int] = PIDS) -> list[tuple[Any, ...]]:
    return [(*words.ranks, words.text) for words in witness_reports(report, pids)]


def member(rank: int, calls: dict[str, int] | None = None, **status: Any) -> dict[str, Any]:
    healthy = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    place = {"rank": rank, "host": f"10.0.0.{rank // 4}", "pid": PID_OF_0 + rank}
    return {**place, "status": healthy | status, "collective_counts": calls or {}}


def missing(rank: int, *, unresponsive: bool = False, considered_dead: bool = False) -> dict[str, Any]:
    status = {"unresponsive": unresponsive, "considered_dead": considered_dead}
    return {**member(rank), "status": status}


def communicator(
    ranks: list[dict[str, Any]], lost: list[dict[str, Any]] | None = None, size: int = 8
) -> dict[str, Any]:
    return {"size": size, "ranks": ranks, "missing_ranks": lost or []}


def told(*communicators: dict[str, Any], world: int = 8) -> list[tuple[Any, ...]]:
    # As wide as NCCL writes it: a report that is denser than any of its own is refused.
    report = json.dumps({"communicators": communicators}, indent=8).encode()
    return facts(report, [PID_OF_0 + rank for rank in range(world)])


def counted(*counts: int, kind: str = "AllReduce") -> dict[str, Any]:
    ranks = [member(rank, {kind: count, "Broadcast": 5}) for rank, count in enumerate(counts)]
    return communicator(ranks, size=len(counts))


def test_what_nccl_writes_is_read() -> None:
    assert facts(REPORT) == [SILENT, *FAILED]


@contextlib.contextmanager
def process_with(**environment: str) -> Iterator[int]:
    """Yield the pid of a process that runs with an environment."""
    with subprocess.Popen(["/bin/cat"], env=environment, stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(timeout=60)


def test_the_process_of_a_rank_shows_where_ras_listens() -> None:
    with served(speaking(REPORT)) as (host, port), process_with(NCCL_RAS_ADDR=f"{host}:{port}") as pid:
        assert ask_of(pid, PIDS)[0].text == SILENT[1]
    with pytest.raises(RasError):
        ask_of(pid, PIDS)


def test_a_run_that_has_turned_ras_off_is_not_asked() -> None:
    with process_with(NCCL_RAS_ENABLE="0") as pid:
        assert ask_of(pid, PIDS) == []


def test_a_comma_that_old_versions_leave_out_is_put_in() -> None:
    # NCCL 2.28.7 and 2.28.9, src/ras/client_support.cc, jsonWriteMissingRank: no comma after nvml_dev.
    old = REPORT.replace(b'"nvml_dev": 5,', b'"nvml_dev": 5')
    with pytest.raises(json.JSONDecodeError):
        json.loads(old)
    assert facts(old) == [SILENT, *FAILED]


def test_a_process_that_ras_does_not_know_is_no_rank() -> None:
    # rasDumpCommsToJSON of NCCL 2.30.7.
    unknown = REPORT.replace(b'"172.16.64.245",\n          "pid": 1524345', b'"unknown",\n          "pid": -1')
    assert unknown != REPORT
    assert facts(unknown) == FAILED


def test_another_job_of_the_node_is_left_out() -> None:
    assert facts(REPORT, [1524344, 1524346]) == []
    assert facts(REPORT, [*PIDS, 1524346]) == []
    assert facts(REPORT, []) == []
    part = communicator([member(0, abort_flag=True)], size=2)
    assert told(part) == [], "no communicator of the whole world shows whose ranks these are"
    whole = communicator([member(rank) for rank in range(8)])
    assert told(whole, part) == [(0, "has aborted a communicator of 2 ranks")]


def test_a_healthy_job_needs_no_words() -> None:
    assert told(counted(*[42] * 8)) == []
    assert told() == []


def test_a_process_that_does_not_answer_or_is_dead_is_named_once() -> None:
    silent = [missing(3, unresponsive=True), missing(5, unresponsive=True, considered_dead=True)]
    job = communicator([member(0)], [*silent, missing(6)])
    assert told(job, job) == [
        (5, "its process is taken for dead"),
        (3, "its process gives no answer"),
        (6, "answers, but has closed or not made a communicator of 8 ranks"),
    ]


@pytest.mark.parametrize(
    ("counts", "few"),
    [
        ((42, 42, 42, 41, 42, 42, 42, 42), [3]),
        ((42, 42, 41, 41, 42, 42, 42, 42), [2, 3]),
        ((42, 42, 42, 42, 42, 41, 41, 41), []),
        ((42, 42, 42, 42, 42, 42, 41, 40), []),
    ],
)
def test_only_a_few_that_differ_from_a_clear_majority_are_named(counts: tuple[int, ...], few: list[int]) -> None:
    text = "has launched 41 reduce_scatter calls in a communicator of 8 ranks, the others 42"
    assert told(counted(*counts, kind="ReduceScatter")) == ([(*few, text)] if few else [])


def test_a_communicator_that_is_being_made_is_said() -> None:
    ranks = [member(rank, init_state=7 * (rank == 2)) for rank in range(4)]
    assert told(communicator(ranks, size=4), world=4) == [(2, "still sets up a communicator of 4 ranks")]


def test_there_are_at_most_eight_facts_and_none_can_steer_a_terminal() -> None:
    ranks = [member(rank, async_error=20 + rank) for rank in range(20)]
    assert len(told(communicator(ranks, size=20), world=20)) == 8
    steering = counted(42, 42, 42, 41, kind="\x1b[2J\ud800\n" + "A" * 999)
    ((rank, text),) = told(steering, world=4)
    assert rank == 3
    assert text.isprintable()
    assert len(text) < 400
    ((_, text),) = told(counted(5, 5, 5, 10**3000), world=4)
    assert len(text) == 400


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{", b""),
        (b'"pid": 1524344', b'"pid": "1"'),
        (b'"rank": 1', b'"rank": "1"'),
        (b'"size": 2', b'"size": 2.5, "ranks_count": 1, "x": 2, "size": []'),
        (b'"abort_flag": true', b'"x": 1'),
        (b'"init_state": 0', b'"init_state": []'),
        (b'"communicators": [', b'"communicators": 7, "x": ['),
        (b'"communicators": [', b'"communicators": [7, '),
        (b'"AllReduce": 41', b'"AllReduce": ' + b"9" * 5000),
        (REPORT[-20:], b""),
        (REPORT, b""),
        (REPORT, b"[1, 2]"),
        (REPORT, b'{"a": "\xff\xfe"}'),
        (REPORT, b"[" * 100_000),
        (REPORT, b"[" * 3000 + b" " * 200_000 + b"]" * 3000),
    ],
)
def test_what_nccl_does_not_write_is_refused(old: bytes, new: bytes) -> None:
    assert old in REPORT
    report = REPORT.replace(old, new, 1)
    try:
        found = facts(report)
    except RasError as error:
        assert str(error).startswith("it ")
    else:
        assert found == []


def test_a_rank_that_the_run_does_not_have_is_none() -> None:
    for rank in (-1, 2, 1 << 40):
        assert facts(REPORT.replace(b'"rank": 1', b'"rank": %d' % rank)) == []
