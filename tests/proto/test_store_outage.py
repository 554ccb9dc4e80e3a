import logging

import pytest

from holdfast_proto.store_outage import QUIET_S, StoreOutage


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> StoreOutage:
    caplog.set_level(logging.INFO)
    return StoreOutage(logging.getLogger("agent"), "redis://head:6379", "the agent tries again", clock)


def test_an_outage_is_one_line_and_its_end_another(
    outage: StoreOutage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.answered()
    assert caplog.messages == []
    for _ in range(500):
        outage.failed(ConnectionError("Error 111 connecting to head:6379.\nConnection refused."))
        clock.now_s += 0.2
    outage.answered()
    assert len(caplog.messages) == 1
    for _ in range(2):
        clock.now_s += QUIET_S
        outage.answered()
    assert caplog.messages == [
        "Redis at redis://head:6379 cannot be used (Error 111 connecting to head:6379. Connection refused): the agent"
        " tries again",
        "Redis at redis://head:6379 can be used again, after 100.0 s",
    ]


def test_a_store_that_answers_reads_and_refuses_writes_is_one_outage(
    outage: StoreOutage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(500):
        outage.answered()
        outage.failed(OSError("READONLY You can't write against a read only replica."))
        clock.now_s += 0.2
    assert len(caplog.messages) == 1


def test_a_store_that_comes_and_goes_is_reported_every_few_seconds_at_most(
    outage: StoreOutage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        outage.failed(OSError("gone"))
        outage.answered()
        clock.now_s += QUIET_S / 10
    assert len(caplog.messages) == 1
    clock.now_s += QUIET_S
    outage.answered()
    assert len(caplog.messages) == 2
    outage.failed(OSError("gone"))
    assert len(caplog.messages) == 3
