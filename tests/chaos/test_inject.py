"""The whole way of a fault: command line, daemon, agent, rank, and the reports about it."""

import json
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest

from holdfast_cli.run_folder.record import find_record
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, VERDICT_KIND_DEAD_RANK
from tests.chaos.conftest import STEPS, Runs, expect_every_second_in, faults, until, until_step

pytestmark = pytest.mark.system


def holdfast(runs: Runs, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "holdfast_cli", *arguments, "--directory", str(runs.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_requested_fault_is_refused_or_strikes_its_rank_and_either_is_reported(runs: Runs) -> None:
    began_unix_s = time.time()
    # More steps than a busy machine does between two commands.
    with runs.run("injected", faults_allowed=True, steps=4 * STEPS) as local:
        until_step(local, 4)
        late = holdfast(runs, "inject", "kill", "--rank", "3", "--step", "1", "--run", "injected")
        assert (late.returncode, late.stdout) == (1, "")
        assert "step 1 has already ended" in late.stderr
        assert late.stderr.count("\n") == 1
        accepted = holdfast(runs, "inject", "kill", "--rank", "3", "--phase", "optimizer", "--run", "injected")
        assert (accepted.returncode, accepted.stderr) == (0, "")
        until(local, lambda status: status.incidents == 1)
        status = json.loads(holdfast(runs, "status", "--json", "--run", "injected").stdout)
        refused, injected = (action["what"] for action in status["newest_incident"]["actions"][:2])
        assert refused.startswith("kill was not injected into rank 3: step 1 has already ended")
        assert injected.startswith("kill was armed in rank 3 for step ")
        assert injected.endswith("or later, at the start of the phase optimizer")
        page = find_record(runs.folder, "injected").components["daemon"]
        with urlopen(f"http://127.0.0.1:{page['metrics_port']}/metrics") as metrics:
            assert 'holdfast_faults_injected_total{kind="kill",run="injected"} 1.0' in metrics.read().decode()
        runs.hurry("injected")
        seen_unix_s = [time.time()]  # of the end: it came between the newest two looks

        def has_ended(status: RunStatus) -> bool:
            seen_unix_s.append(time.time())
            return status.phase == RUN_PHASE_FINISHED

        ended = until(local, has_ended)
        expect_every_second_in(ended.time_use_s, (seen_unix_s[-2] - began_unix_s, seen_unix_s[-1] - began_unix_s))
        assert min(ended.time_use_s[use] for use in ("productive", "start_up", "restart", "evaluation")) > 0.0
        [incident] = faults(local)
    assert incident.verdict.kind == VERDICT_KIND_DEAD_RANK
    assert list(incident.verdict.culprits) == [3]
    assert "SIGKILL" in incident.verdict.message
