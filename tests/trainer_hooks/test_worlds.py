"""Tests that need several real ranks: progress of groups and channels, and sharded tensors."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast_proto import black_box
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1.common_pb2 import DIRECTION_RECV, DIRECTION_SEND, Progress
from holdfast_proto.v1.session_pb2 import CaptureEvidence, RankCommand

pytestmark = pytest.mark.system


@contextmanager
def world(scenario: str, folder: Path, ranks: int = 2) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "tests.trainer_hooks.world", scenario, str(folder), str(ranks)]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def channels(progress: Progress) -> list[tuple[str, int, int, int, int]]:
    return [(c.group, c.peer, c.direction, c.enqueued, c.completed) for c in progress.channels]


def groups(progress: Progress) -> dict[str, tuple[list[int], int, int]]:
    return {
        group.description: (list(members_of(group.member_runs)), group.enqueued, group.completed)
        for group in progress.groups
    }


def test_hung_ranks_show_what_they_wait_for(agent: Any, folder: Path) -> None:
    with world("hang", folder) as process:

        def report_of(channel: tuple[str, int, int, int, int], default_group: tuple[int, int]) -> Any:
            for report in agent.of("report"):
                found = groups(report.progress)
                if (
                    channels(report.progress) == [channel]
                    and found.get("default_pg") == ([0, 1], *default_group)
                    and found.get("mesh_tp") == ([0, 1], 1, 1)
                ):
                    return report
            return None

        sender = agent.wait_until(lambda: report_of(("0", 1, DIRECTION_SEND, 1, 1), (4, 3)))
        receiver = agent.wait_until(lambda: report_of(("0", 0, DIRECTION_RECV, 2, 1), (3, 3)))
        assert sender.recorder_failures_total == receiver.recorder_failures_total == 0
        assert receiver.progress.step == 0

        box = black_box.read(folder / "black-box-1")
        assert [(c.peer, c.direction, c.enqueued, c.completed) for c in box.channels] == [(0, DIRECTION_RECV, 2, 1)]
        assert [call.seq for call in box.calls] == [1, 2]
        assert (3, 3) in [(group.enqueued, group.completed) for group in box.groups]

        def names_the_last_call() -> Any:  # on a busy machine an earlier one may have waited for long, too
            return next((one for one in agent.of("report") if any(call.seq == 4 for call in one.pending)), None)

        named = agent.wait_until(names_the_last_call)
        assert named.progress.channels[0].direction == DIRECTION_SEND
        (call,) = named.pending
        assert (call.group, call.op) == ("0", "gloo:all_reduce")
        assert (call.sizes, call.dtypes) == ("[[1]]", "['Float']")
        in_box = black_box.NamedCall(call.group, call.seq, call.op, call.sizes, call.dtypes)
        assert black_box.read(folder / "black-box-0").pending == (in_box,)
        assert black_box.read(folder / "black-box-1").pending == ()

        agent.command(RankCommand(id=1, capture_evidence=CaptureEvidence(directory=str(folder / "evidence"))))
        acks = agent.wait_until(lambda: len(agent.of("ack")) == 2 and agent.of("ack"))
        assert all(ack.accepted for ack in acks)
        for rank in (0, 1):
            dump = json.loads((folder / "evidence" / f"rank-{rank:05d}.flight_recorder.json").read_text())
            assert len(dump["entries"]) >= 4

        (folder / "release").touch()
        # The ranks gave their fourth all-reduce different numbers, as one had sent once and one received twice.
        agent.wait_until(lambda: report_of(("0", 1, DIRECTION_SEND, 2, 2), (4, 4)))
        agent.wait_until(lambda: report_of(("0", 0, DIRECTION_RECV, 2, 2), (4, 4)))
        (folder / "end").touch()
        assert process.wait(60) == 0


def test_a_flipped_bit_shows_in_what_replicas_report_and_the_end_of_a_rank_in_its_newest_call(
    agent: Any, folder: Path
) -> None:
    with world("corrupt", folder) as process:
        process.wait(60)
    reported = [[(replica.part, replica.hash) for replica in record.replicas] for record in agent.steps]
    steps = {
        step: [one for one, record in zip(reported, agent.steps, strict=True) if record.step == step] for step in (0, 2)
    }
    (first, alike), (second, other) = steps[0], steps[2]
    assert first == alike
    assert [part for part, _ in first] == ["model/bias@0..model/weight@0"]
    assert [part for part, _ in second] == [part for part, _ in other]
    assert second != other

    # The other rank has last words, too, if it sees the connection break before it is stopped. A report that is
    # just being built may have them before the last one.
    *_, last = [report for report in agent.of("report") if "bad sample" in report.last_words]
    assert [call.op for call in last.pending] == ["gloo:all_reduce"]
    assert [call.seq for call in black_box.read(folder / "black-box-1").pending] == [last.pending[0].seq]


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_only_the_rank_whose_gradients_were_bad_before_the_sum_over_ranks_says_so(
    agent: Any, folder: Path, sharding: str
) -> None:
    with world(f"bad_gradients_{sharding}", folder) as process:
        assert process.wait(120) == 0
    bad = [(record.step, record.bad_gradient.parameter) for record in agent.steps if record.bad_gradient.own]
    assert bad == [(3, "rank1.1.weight")]
    assert sorted(record.step for record in agent.steps if math.isnan(record.grad_norm)) == [1, 1, 3, 3]


def test_ranks_that_got_different_answers_load_nothing(folder: Path) -> None:
    with world("answers", folder) as process:
        assert process.wait(60) == 0
    first, second = (json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert [line.partition("; ")[0].partition("from, ")[2] for line in first] == [
        "",
        "of steps 6 to 9 and generations 5 to 5",
        "of steps 6 to 6 and generations 5 to 6",
        "",
    ]


def test_sharded_training_is_restored_bit_by_bit(folder: Path) -> None:
    with world("fsdp", folder) as process:
        assert process.wait(120) == 0
    for rank in (0, 1):
        result = json.loads((folder / f"result-{rank}.json").read_text())
        assert (result["step"], result["same_losses"], result["same_weights"]) == (2, True, True)
        assert result["entries"]["model/0.weight"] == [[3, 4], [6, 4], [3 * rank, 0]]
        assert result["entries"]["optimizer/state/0/exp_avg"] == [[3, 4], [6, 4], [3 * rank, 0]]
        rows = 2 - rank
        assert result["entries"]["model/2.weight"] == [[rows, 6], [3, 6], [2 * rank, 0]]
        assert result["refusal"] == (
            "cannot restore model/0.weight: the saved state has float32 (3, 4) of (6, 4), this run float32 (5, 4) "
            "of (10, 4); model/0.bias: the saved state has float32 (3,) of (6,), this run float32 (5,) of (10,); "
            f"model/2.weight: the saved state has float32 ({rows}, 6) of (3, 6), this run float32 ({rows}, 10) of "
            "(3, 10); use another run name, or another checkpoint directory"
        )


@pytest.mark.parametrize("ranks", [3, 4])
def test_data_parallel_ranks_add_gradients_in_the_same_order_after_a_restart(folder: Path, ranks: int) -> None:
    with world("ddp", folder, ranks) as process:
        assert process.wait(120) == 0
    results = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(ranks)]
    same = {"after 1": True, "after 2": True, "after 4": True, "logged": ""}
    assert [{name: result[name] for name in same} for result in results] == [same] * ranks
    assert "DistributedDataParallel around model/0.weight cannot learn its buckets" in results[0]["static_graph"]
    assert [result["static_graph"] for result in results[1:]] == [""] * (ranks - 1)


def test_all_ranks_take_or_skip_an_update_and_hear_of_a_spike_in_the_same_step(folder: Path) -> None:
    with world("updates", folder) as process:
        assert process.wait(60) == 0
    answers, heard = json.loads((folder / "result-0.json").read_text())
    assert [answers, heard] == json.loads((folder / "result-1.json").read_text())
    assert answers == [True] * 16 + [False, False, True, True]  # 20 is not more than ten times the usual 2
    assert heard == [[16, "gradient", 16], [17, "gradient", 17], [18, "divergence", 9]]
