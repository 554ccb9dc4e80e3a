"""Runs of earlier versions left files under these names, and users' scripts read some of them."""

from pathlib import Path, PurePath

import pytest

from holdfast_proto import run_files

RUN, RUNTIME = Path("runs/a"), Path("/tmp/holdfast-x")
BOXES = run_files.black_boxes(RUN, "b")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (run_files.process_log(RUN, "agent"), "runs/a/logs/agent.log"),
        (run_files.rank_log(RUN, 3, 12), "runs/a/logs/generation-0003/rank-00012.log"),
        (run_files.agent_record(RUN, "node-a"), "runs/a/node-node-a/record.pb"),
        (run_files.black_box(BOXES, 1, 0), "runs/a/node-b/black-boxes/generation-0001/rank-00000.box"),
        (run_files.slots(RUN), "runs/a/slots"),
        (run_files.incidents(RUN, "a"), "runs/a/incidents/a"),
        (run_files.incident_log(RUN, "a"), "runs/a/incidents-a.jsonl"),
        (run_files.suspicions(RUN), "runs/a/suspicions"),
        (run_files.failures(RUN, "a"), "runs/a/failures/a"),
        (run_files.session_socket(RUNTIME, "b"), "/tmp/holdfast-x/agent-b.sock"),
        (run_files.warm_parent_socket(RUNTIME, "b"), "/tmp/holdfast-x/warm-parent-b.sock"),
        (run_files.agent_endpoint(RUNTIME, "b"), "/tmp/holdfast-x/agent-b.json"),
        (run_files.daemon_endpoint(RUNTIME / "daemon.sock"), "/tmp/holdfast-x/daemon.sock.json"),
        (run_files.rank_evidence(7, "exit.json"), "rank-00007.exit.json"),
        (run_files.node_evidence("b", "system.txt"), "node-b.system.txt"),
        (run_files.flight_recorder_dump(7), "rank-00007.flight_recorder.json"),
    ],
)
def test_files_keep_their_names(path: Path | str, name: str) -> None:
    assert str(path) == name


def test_patterns_match_the_names_of_any_rank_and_node() -> None:
    for rank in (0, 123456):
        assert run_files.rank_log(RUN, 12345, rank).match(run_files.RANK_LOGS)
        assert PurePath(run_files.black_box_copy(rank)).match(run_files.BLACK_BOX_COPIES)
    for node in ("local", "gpu-01.cluster"):
        assert PurePath(run_files.findings(node)).match(run_files.FINDINGS)
        assert run_files.agent_record(RUN, node).match(run_files.AGENT_RECORDS)
