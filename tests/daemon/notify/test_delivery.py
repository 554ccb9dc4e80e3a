import threading
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast_daemon.notify.channels.sending import Channel, DeliveryRefusedError
from holdfast_daemon.notify.channels.webhooks import Webhook
from holdfast_daemon.notify.delivery import GIVE_UP_S, MOST_WAITING, DeliveryCounts, DeliveryQueue
from holdfast_daemon.notify.message import Message, Notice
from tests.support.coroutines import wait_until
from tests.support.receiver import Answer, Receiver, receiver

PATIENCE_S = 60.0


def message(number: int = 0, unix_s: float | None = None) -> Message:
    notice = Notice(
        event="incident",
        status="open",
        key=f"run/i/{number}",
        what=f"what {number}",
        next="next",
        unix_s=1.0,
        see="see",
    )
    sent_unix_s = time.time() if unix_s is None else unix_s
    return Message(run="run", host="host", title=f"title {number}", sent_unix_s=sent_unix_s, notices=(notice,))


@pytest.fixture
def service() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


class Queue:
    """A queue of one channel, and how its deliveries ended."""

    def __init__(self, channel: Channel, unix_s: Callable[[], float] = time.time) -> None:
        self.counts = DeliveryCounts(["hook"])
        self.changes = 0
        self.queue = DeliveryQueue(
            "run", "hook", channel, self.counts, self._changed, unix_s=unix_s, first_pause_s=0.01
        )

    def _changed(self) -> None:
        self.changes += 1

    def outcomes(self) -> dict[str, int]:
        return {outcome: count for (_, outcome), count in self.counts.outcomes.items() if count}


def hook(service: Receiver) -> Queue:
    return Queue(Webhook(f"{service.url}/hook", None, None))


def titles(service: Receiver) -> list[str]:
    return [request.json["title"] for request in service.received]


def test_messages_arrive_in_order_and_are_counted(service: Receiver) -> None:
    queue = hook(service)
    for number in range(5):
        queue.queue.put(message(number))
    assert queue.queue.wait_idle(PATIENCE_S)
    assert titles(service) == [f"title {number}" for number in range(5)]
    assert queue.outcomes() == {"sent": 5}
    assert queue.counts.attempts == {"hook": 5}
    assert queue.changes == 5


@pytest.mark.parametrize("answer", [Answer(500), Answer(503), Answer(408), Answer(429), Answer(closes=True)])
def test_what_may_pass_is_tried_again(service: Receiver, answer: Answer) -> None:
    service.answers = [answer, answer, Answer()]
    queue = hook(service)
    queue.queue.put(message())
    assert queue.queue.wait_idle(PATIENCE_S)
    assert len(service.received) == 3
    assert queue.outcomes() == {"sent": 1}
    assert queue.counts.attempts == {"hook": 3}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 301, 302, 307])
def test_what_will_not_change_is_not_tried_again(service: Receiver, status: int) -> None:
    service.answers = [Answer(status, {"Location": "/elsewhere"}), Answer()]
    queue = hook(service)
    queue.queue.put(message(0))
    queue.queue.put(message(1))
    assert queue.queue.wait_idle(PATIENCE_S)
    assert titles(service) == ["title 0", "title 1"]
    assert queue.outcomes() == {"refused": 1, "sent": 1}


def test_retry_after_is_obeyed(service: Receiver) -> None:
    service.answers = [Answer(429, {"Retry-After": "1"}), Answer()]
    queue = hook(service)
    began_s = time.monotonic()
    queue.queue.put(message())
    assert queue.queue.wait_idle(PATIENCE_S)
    assert time.monotonic() - began_s >= 1.0
    assert queue.outcomes() == {"sent": 1}


def test_an_absurd_retry_after_is_bounded_by_the_age_of_the_message(service: Receiver) -> None:
    service.answers = [Answer(429, {"Retry-After": "1e18"})]
    now = time.time()
    queue = Queue(Webhook(service.url, None, None), unix_s=lambda: now)
    queue.queue.put(message(unix_s=now - GIVE_UP_S + 100))
    assert queue.queue.wait_idle(PATIENCE_S)
    assert queue.outcomes() == {"gave_up": 1}


def test_a_message_is_given_up_after_an_hour(service: Receiver) -> None:
    service.answers = [Answer(500)]
    queue = Queue(Webhook(service.url, None, None), unix_s=lambda: 10_000.0)
    queue.queue.put(message(unix_s=10_000.0 - GIVE_UP_S))
    assert queue.queue.wait_idle(PATIENCE_S)
    assert (len(service.received), queue.outcomes()) == (1, {"gave_up": 1})


class Stuck:
    """A channel that hangs until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def send(self, message: Message) -> None:
        self.entered.set()
        self.release.wait()


def test_a_dead_channel_delays_no_other_and_its_queue_is_bounded(service: Receiver) -> None:
    stuck = Stuck()
    dead, alive = Queue(stuck), hook(service)
    for number in range(MOST_WAITING + 5):
        dead.queue.put(message(number))
        if number == 0:
            assert stuck.entered.wait(PATIENCE_S)
    alive.queue.put(message())
    assert alive.queue.wait_idle(PATIENCE_S)
    assert not dead.queue.wait_idle(0.0)
    assert dead.outcomes() == {"dropped": 5}
    waiting = dead.queue.waiting
    assert len(waiting) == MOST_WAITING
    assert (waiting[0].title, waiting[1].title, waiting[-1].title) == ("title 0", "title 6", "title 104")
    stuck.release.set()
    assert dead.queue.wait_idle(PATIENCE_S)


def test_a_closed_queue_keeps_what_has_no_outcome(service: Receiver) -> None:
    service.answers = [Answer(500)]
    queue = hook(service)
    queue.queue.put(message(0))
    wait_until(lambda: service.received, "there was an attempt")
    queue.queue.close()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "notify-hook"], "its thread has ended")
    assert [one.title for one in queue.queue.waiting] == ["title 0"]


def test_an_error_of_a_channel_ends_one_message_only(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty:
        def __init__(self) -> None:
            self.sent: list[str] = []

        def send(self, message: Message) -> None:
            if not self.sent:
                self.sent.append("")
                raise ZeroDivisionError
            if len(self.sent) == 1:
                self.sent.append("")
                raise DeliveryRefusedError("no")
            self.sent.append(message.title)

    channel = Faulty()
    queue = Queue(channel)
    for number in range(3):
        queue.queue.put(message(number))
    assert queue.queue.wait_idle(PATIENCE_S)
    assert channel.sent == ["", "", "title 2"]
    assert queue.outcomes() == {"refused": 2, "sent": 1}
    assert "ZeroDivisionError" in caplog.text
