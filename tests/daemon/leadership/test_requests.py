"""Operators' requests: the core sees each once, and each is answered once."""

import asyncio

from holdfast_core.model import (
    CheckpointAnswered,
    CheckpointRequest,
    FaultAnswered,
    FaultRequest,
    LiveAnswered,
    ProfileRequest,
    StacksRequest,
    StopRequest,
)
from holdfast_daemon.leadership.requests import Requests
from holdfast_proto.v1.fault_pb2 import Fault

FAULT = Fault(kind="kill", rank=1)


async def test_one_checkpoint_answers_all_who_asked_for_one() -> None:
    requests = Requests()
    asked = [asyncio.create_task(requests.checkpoint()) for _ in range(2)]
    await asyncio.sleep(0)
    assert requests.take() == (CheckpointRequest(), CheckpointRequest())
    assert requests.take() == ()
    requests.answer(CheckpointAnswered(7))
    assert await asyncio.gather(*asked) == [CheckpointAnswered(7)] * 2


async def test_equal_faults_are_answered_one_by_one_in_the_order_of_their_requests() -> None:
    requests = Requests()
    first, second = (asyncio.create_task(requests.fault(FAULT)) for _ in range(2))
    await asyncio.sleep(0)
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
    fault = asyncio.create_task(requests.fault(FAULT))
    checkpoint = asyncio.create_task(requests.checkpoint())
    await asyncio.sleep(0)
    shown = requests.take()
    requests.settle(shown, failed=[one for one in shown if isinstance(one, StopRequest | FaultRequest)])
    assert "the daemon failed on this request" in await stop
    assert "the daemon failed on this request" in (await fault).refusal
    assert not checkpoint.done()
    checkpoint.cancel()


async def test_all_requests_are_refused_when_another_daemon_leads() -> None:
    requests = Requests()
    stop = requests.stop()
    fault = asyncio.create_task(requests.fault(FAULT))
    checkpoint = asyncio.create_task(requests.checkpoint())
    await asyncio.sleep(0)
    requests.refuse_all("another daemon leads now")
    assert [await stop, (await fault).refusal] == ["another daemon leads now"] * 2
    assert await checkpoint == CheckpointAnswered(-1, "another daemon leads now")
    assert requests.take() == ()


async def test_stacks_and_profiles_are_answered_by_the_id_of_their_request() -> None:
    requests = Requests()
    first, second = StacksRequest("a"), ProfileRequest("b", rank=1, steps=3, patience_s=9.0)
    asked = [asyncio.create_task(requests.live(one)) for one in (first, second)]
    await asyncio.sleep(0)
    assert requests.take() == (first, second)
    requests.answer(LiveAnswered("b"))
    requests.answer(LiveAnswered("c"))  # of an operator who has gone
    assert await asked[1] == LiveAnswered("b")
    assert not asked[0].done()
    requests.refuse_all("another daemon leads now")
    assert await asked[0] == LiveAnswered("a", "another daemon leads now")


async def test_stacks_that_the_core_failed_on_are_refused() -> None:
    requests = Requests()
    asked = asyncio.create_task(requests.live(StacksRequest("a")))
    await asyncio.sleep(0)
    shown = requests.take()
    requests.settle(shown, failed=shown)
    assert "the daemon failed on this request" in (await asked).refusal
