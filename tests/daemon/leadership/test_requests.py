"""Operators' requests: the core sees each once, and each is answered once."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdfast_core.model import (
    CheckpointAnswered,
    CheckpointRequest,
    FaultAnswered,
    LiveAnswered,
    ProfileRequest,
    StacksRequest,
    StopRequest,
)
from holdfast_daemon.leadership.requests import Requests
from holdfast_proto.v1.fault_pb2 import Fault

FAULT = Fault(kind="kill", rank=1)
FAILED = "the daemon failed on this request"


async def asked(*requests: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Let operators wait for the answers to requests."""
    waiting = [asyncio.create_task(one) for one in requests]
    await asyncio.sleep(0)
    return waiting


async def test_one_checkpoint_answers_all_who_asked_for_one() -> None:
    requests = Requests()
    waiting = await asked(requests.checkpoint(), requests.checkpoint())
    assert requests.take() == (CheckpointRequest(), CheckpointRequest())
    assert requests.take() == ()
    requests.answer(CheckpointAnswered(7))
    assert await asyncio.gather(*waiting) == [CheckpointAnswered(7)] * 2


async def test_equal_faults_are_answered_one_by_one_in_the_order_of_their_requests() -> None:
    requests = Requests()
    first, second = await asked(requests.fault(FAULT), requests.fault(FAULT))
    requests.answer(FaultAnswered(FAULT, "no"))
    assert (await first).refusal == "no"
    assert not second.done()
    requests.answer(FaultAnswered(FAULT))
    assert await second == FaultAnswered(FAULT)


async def test_a_stop_is_answered_once_the_core_has_taken_it_in() -> None:
    requests = Requests()
    answer = requests.stop(5.0)
    shown = requests.take()
    assert shown == (StopRequest(5.0),)
    assert not answer.done()
    requests.settle(shown, failed=())
    assert await answer == ""


async def test_a_request_that_the_core_failed_on_is_refused_and_the_others_wait_for_its_answer() -> None:
    requests = Requests()
    stop = requests.stop()
    live = requests.live(StacksRequest("a"))
    fault, stacks, checkpoint = await asked(requests.fault(FAULT), live, requests.checkpoint())
    shown = requests.take()
    requests.settle(shown, failed=[one for one in shown if not isinstance(one, CheckpointRequest)])
    assert FAILED in await stop
    assert FAILED in (await fault).refusal
    assert FAILED in (await stacks).refusal
    assert not checkpoint.done()
    checkpoint.cancel()


async def test_all_requests_are_refused_when_another_daemon_leads() -> None:
    requests = Requests()
    stop = requests.stop()
    fault, checkpoint = await asked(requests.fault(FAULT), requests.checkpoint())
    requests.refuse_all("another daemon leads now")
    assert [await stop, (await fault).refusal] == ["another daemon leads now"] * 2
    assert await checkpoint == CheckpointAnswered(-1, "another daemon leads now")
    assert requests.take() == ()


async def test_stacks_and_profiles_are_answered_by_the_id_of_their_request() -> None:
    requests = Requests()
    first, second = StacksRequest("a"), ProfileRequest("b", rank=1, steps=3, patience_s=9.0)
    stacks, profile = await asked(requests.live(first), requests.live(second))
    assert requests.take() == (first, second)
    requests.answer(LiveAnswered("b"))
    requests.answer(LiveAnswered("c"))  # of an operator who has gone
    assert await profile == LiveAnswered("b")
    assert not stacks.done()
    requests.refuse_all("another daemon leads now")
    assert await stacks == LiveAnswered("a", "another daemon leads now")
