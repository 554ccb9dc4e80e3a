"""The way of a profile between agent and rank: the command, its answer, and the end that is sent also at the end."""

import time
from pathlib import Path
from typing import Any

import torch

import holdfast_hooks
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.session_pb2 import ProfileSteps, RankCommand


def test_the_end_of_a_profile_reaches_the_agent_although_the_rank_leaves(
    agent: Any, launched: RankContext, tmp_path: Path
) -> None:
    wanted = ProfileSteps(request="a", steps=100, directory=str(tmp_path), patience_s=60.0)
    with holdfast_hooks.attach() as hooks:
        agent.wait_until(lambda: agent.of("hello"))
        agent.command(RankCommand(id=7, generation=2, profile_steps=wanted))
        for _ in hooks.steps(until=10**9):
            torch.ones(1).add(1)
            time.sleep(0.001)
            if agent.of("ack"):
                break
    [ack] = agent.of("ack")
    assert (ack.id, ack.accepted) == (7, True), ack.detail
    [done] = agent.wait_until(lambda: agent.of("profile_done"))
    assert done.request == "a"
    assert "the rank left training after" in done.problem
