"""An agent's command that makes a rank harm itself."""

from collections.abc import Callable

import pytest
import torch

import holdfast_hooks
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.common_pb2 import PHASE_EVAL, PHASE_INIT
from holdfast_proto.v1.fault_pb2 import Fault
from holdfast_proto.v1.session_pb2 import CommandAck, RankCommand
from tests.trainer_hooks.conftest import AgentServer


@pytest.fixture(autouse=True)
def _allowed(launch: Callable[..., RankContext]) -> None:
    launch(faults_allowed=True)


def answer(agent: AgentServer, fault: Fault) -> CommandAck:
    """Send a command for a fault and return the rank's answer."""
    known = len(agent.of("ack"))
    agent.wait_until(lambda: agent.of("hello"))
    agent.command(RankCommand(id=known + 1, generation=2, inject_fault=fault))
    ack: CommandAck = agent.wait_until(lambda: agent.of("ack")[known:])[0]
    return ack


def test_a_rank_answers_before_it_is_struck(agent: AgentServer) -> None:
    with pytest.raises(RuntimeError, match="injected fault"), holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=10**9):
            if step == 0:
                assert answer(agent, Fault(kind="exception", rank=3, step=-1)).accepted
    assert len(agent.of("ack")) == 1


def test_a_rank_refuses_what_makes_no_sense_here(agent: AgentServer) -> None:
    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=3):
            if step == 2:
                assert "has already ended" in answer(agent, Fault(kind="exception", rank=3, step=1)).detail
                assert "init is over" in answer(agent, Fault(kind="exception", rank=3, phase=PHASE_INIT)).detail
                assert "needs a torch module" in answer(agent, Fault(kind="bit-flip", rank=3, step=5)).detail
                assert "did not enter it" in answer(agent, Fault(kind="data-stall", rank=3, step=-1)).detail
                assert "no fault is called" in answer(agent, Fault(kind="none", rank=3)).detail


def test_a_rank_says_what_an_accepted_fault_waits_for(agent: AgentServer) -> None:
    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=3):
            if step == 2:
                ack = answer(agent, Fault(kind="exception", rank=3, step=-1, phase=PHASE_EVAL))
                late = answer(agent, Fault(kind="exception", rank=3, step=3))
    assert ack.accepted and late.accepted
    assert late.detail.startswith("step 3, and")
    assert ack.detail == "the phase eval, which the training loop did not enter in its last 2 steps"


def test_a_rank_without_replicas_refuses_a_flipped_bit(agent: AgentServer) -> None:
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        for step in hooks.steps(until=3):
            ack = answer(agent, Fault(kind="bit-flip", rank=3, step=-1))
            assert not ack.accepted
            assert ("try again" if step == 0 else "Holdfast cannot see") in ack.detail
            if step == 1:
                break


def test_a_rank_of_a_run_that_allows_no_faults_refuses_them(agent: AgentServer, launched: RankContext) -> None:
    with holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=1):
            ack = answer(agent, Fault(kind="exception", rank=3, step=-1))
    assert not ack.accepted and "--allow-faults" in ack.detail
