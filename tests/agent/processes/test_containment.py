import asyncio
import logging

import pytest

from holdfast_agent.processes import containment
from holdfast_agent.processes.containment import BackgroundJobs, Errors, keep_going
from tests.support.coroutines import end, until


async def test_job_that_fails_continues_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "FIRST_PAUSE_S", 0.001)
    errors, runs = Errors(), 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        raise KeyError("collective_seq_id")

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(keep_going(errors, "tick", work, longest_pause_s=0.002))
        await until(lambda: runs >= 5, "it is tried again and again")
        await end(task)
    assert errors.unexpected["tick"] >= 4
    assert [name for name, number in errors.unexpected.items() if number] == ["tick"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert "collective_seq_id" in record.getMessage()


async def test_pauses_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    async def work() -> None:
        if len(pauses) < 6:
            raise ValueError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await keep_going(Errors(), "events", work, longest_pause_s=1.0)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_job_that_ends_or_is_cancelled_is_left_to_it() -> None:
    async def ends() -> None:
        return

    errors = Errors()
    await keep_going(errors, "events", ends)
    task = asyncio.create_task(keep_going(errors, "events", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()
    assert not any(errors.unexpected.values())


def test_refusals_are_counted_and_logged_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    errors = Errors()
    assert [errors.refuse("commands", reason) for reason in ("a", "a", "b")] == [True, False, True]
    assert (errors.refused["commands"], len(caplog.records)) == (3, 2)


def test_what_is_remembered_is_bounded() -> None:
    errors = Errors()
    for number in range(5000):
        errors.refuse("files", str(number))
    assert errors.refused["files"] == 5000
    assert len(errors._known) == containment._KNOWN_LIMIT


async def test_job_in_the_background_that_fails_ends_no_other() -> None:
    errors, done = Errors(), []
    jobs = BackgroundJobs(errors, "commands")

    async def fail() -> None:
        raise KeyError("step")

    async def succeed() -> None:
        await asyncio.sleep(0)
        done.append(True)

    jobs.begin(fail())
    jobs.begin(succeed())
    assert jobs.running == 2
    await until(lambda: not jobs.running, "both have ended")
    assert (errors.unexpected["commands"], done) == (1, [True])
