"""Runs of earlier versions left files under these names, and users' scripts read some of them."""

from pathlib import Path, PurePath

import pytest

from holdfast_proto import run_files

RUN, RUNTIME = Path("runs/a"), Path("/tmp/holdfast-x")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (run_files.process_log(RUN, "agent"), "logs/agent.log"),
        (run_files.rank_log(RUN, 3, 12), "logs/generation-0003/rank-00012.log"),
        (run_files.agent_record(RUN, "node-a"), "node-node-a/record.pb"),
        (
            run_files.black_box(run_files.black_boxes(RUN, "b"), 1, 0),
            "node-b/black-boxes/generation-0001/rank-00000.box",
        ),
        (run_files.slots(RUN), "slots"),
        (run_files.incidents(RUN, "a"), "incidents/a"),
        (run_files.incident_log(RUN, "a"), "incidents-a.jsonl"),
        (run_files.suspicions(RUN), "suspicions"),
        (run_files.failures(RUN, "a"), "failures/a"),
    ],
)
def test_files_in_a_runs_directory_keep_their_names(path: Path, name: str) -> None:
    assert path == RUN / name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (run_files.session_socket(RUNTIME, "b"), "agent-b.sock"),
        (run_files.warm_parent_socket(RUNTIME, "b"), "warm-parent-b.sock"),
        (run_files.agent_endpoint(RUNTIME, "b"), "agent-b.json"),
        (run_files.daemon_endpoint(RUNTIME / "daemon.sock"), "daemon.sock.json"),
    ],
)
def test_files_in_the_runtime_directory_keep_their_names(path: Path, name: str) -> None:
    assert path == RUNTIME / name


def test_files_of_evidence_keep_their_names() -> None:
    assert run_files.rank_evidence(7, "exit.json") == "rank-00007.exit.json"
    assert run_files.node_evidence("b", "system.txt") == "node-b.system.txt"
    assert run_files.flight_recorder_dump(7) == "rank-00007.flight_recorder.json"


def test_patterns_match_the_names_of_any_rank_and_node() -> None:
    for rank in (0, 123456):
        assert run_files.rank_log(RUN, 12345, rank).match(run_files.RANK_LOGS)
        assert PurePath(run_files.black_box_copy(rank)).match(run_files.BLACK_BOX_COPIES)
    for node in ("local", "gpu-01.cluster"):
        assert PurePath(run_files.findings(node)).match(run_files.FINDINGS)
        assert run_files.agent_record(RUN, node).match(run_files.AGENT_RECORDS)
