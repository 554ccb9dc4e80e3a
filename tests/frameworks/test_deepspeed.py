"""A DeepSpeed engine under Holdfast: its global steps are the steps, a hung rank is named, else nothing changes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast_proto.v1.store_pb2 import VERDICT_KIND_HUNG_COLLECTIVE
from tests.support.framework_runs import RANKS, at_step, finish, observed, run_alone, started
from tests.support.local_runs import wait_for

pytest.importorskip("deepspeed", reason="needs deepspeed: run `make test-frameworks`")

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

JOB = "deepspeed_job.py"


def ends(out: Path) -> list[dict[str, Any]]:
    return [json.loads((out / f"end-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("stage", ["0", "1"])
def test_observe_counts_global_steps_and_names_a_stopped_rank(tmp_path: Path, stage: str) -> None:
    with observed(tmp_path, "watched", JOB, tmp_path / "out", "--stage", stage) as control:
        pid = at_step(control, 10).ranks[1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            verdict = wait_for(control.incidents, "an incident")[0].verdict
        finally:
            os.kill(pid, signal.SIGCONT)
        assert verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
        assert list(verdict.culprits) == [1]
        assert verdict.message.startswith("rank 1 is stopped in ")


def test_a_run_has_the_steps_of_the_engine_and_ends_as_without_holdfast(tmp_path: Path) -> None:
    flags = ("--batches", "20")
    run_alone(JOB, tmp_path / "alone", *flags)
    with started(tmp_path, "held", JOB, tmp_path / "held", *flags, snapshot_every=0) as local:
        status = finish(local, tmp_path, "held")
    assert status.newest_step == 9  # 20 micro-batches, two to a step, counted from 0
    alone, held = ends(tmp_path / "alone"), ends(tmp_path / "held")
    assert [end["global_steps"] for end in alone + held] == [10] * 2 * RANKS
    assert [end["wrapped"] for end in alone] == [[]] * RANKS
    assert [end["wrapped"] for end in held] == [["backward", "forward", "step"]] * RANKS
    assert [end["weights"] for end in held] == [end["weights"] for end in alone]
