"""``holdfast observe`` in containers: namespaces of processes, mounts and host names, as engines make them."""

import os
import signal
from pathlib import Path

import pytest

from holdfast_proto.v1.store_pb2 import VERDICT_KIND_HUNG_COLLECTIVE
from tests.multinode.observed_cluster import UNSHARE, observed_cluster

pytestmark = pytest.mark.system


def test_containers_with_a_rank_each_are_nodes_of_a_run_and_hung_and_dead_ranks_are_named(tmp_path: Path) -> None:
    with observed_cluster(tmp_path, nodes=3, ranks_per_node=1) as run:
        for node in (1, 2, 3):
            run.observe_in_container(node, *run.torchrun(node))
        own_pids = run.until_step(3)
        assert own_pids[1] != run.pid_of(1)  # its agent knows it by a number that counts in the container alone
        (tmp_path / "hang-1").touch()
        hung = run.first_incident()
        assert (hung.verdict.kind, list(hung.verdict.culprits)) == (VERDICT_KIND_HUNG_COLLECTIVE, [1])
        for node in (1, 2, 3):
            line = run.until_line(node, f"incident {hung.id}: rank 1 waits for a lock")
            assert "wait_forever (observed_script.py:" in line
        os.kill(run.pid_of(2), signal.SIGKILL)
        for node in (1, 2, 3):
            run.until_line(node, "-dead-rank: rank 2 was killed by SIGKILL")


def test_ranks_with_process_numbers_of_their_own_are_refused_in_one_line_and_train_on(tmp_path: Path) -> None:
    with observed_cluster(tmp_path) as run:
        for node in (1, 2):
            run.observe(node, *run.torchrun(node, steps=60, wrapper=UNSHARE))
        assert run.codes() == [0, 0]
        for node in (1, 2):
            assert run.log(node).count("cannot be watched from outside: run `holdfast observe` in the container") == 1
            assert run.incident_lines(node) == []
