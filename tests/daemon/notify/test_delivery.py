import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast_daemon.notify.channels.sending import Channel, DeliveryRefusedError
from holdfast_daemon.notify.channels.webhooks import Webhook
from holdfast_daemon.notify.delivery import GIVE_UP_S, LATE_S, MOST_WAITING, DeliveryCounts, DeliveryQueue
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

    def __init__(
        self,
        channel: Channel,
        unix_s: Callable[[], float] = time.time,
        status_now: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.counts = DeliveryCounts(["hook"])
        self.changes = 0
        self.queue = DeliveryQueue(
            "run",
            "hook",
            channel,
            self.counts,
            self._changed,
            status_now=status_now,
            unix_s=unix_s,
            first_pause_s=0.01,
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


class Outage:
    """A receiver that is down until the test says otherwise, and a clock that it sets."""

    def __init__(self, service: Receiver, **statuses: str) -> None:
        self.now = 1e6
        self.service = service
        self.back = threading.Event()
        service.answers = [Answer(503, waits_for=self.back), Answer()]
        keys = {f"run/i/{name}": status for name, status in statuses.items()}
        self.queue = Queue(Webhook(f"{service.url}/hook", None, None), lambda: self.now, lambda key: keys.get(key, ""))

    def happens(self, number: int, status: str = "open", age_s: float = 0.0) -> None:
        """Let something happen to an incident, so long before the receiver is back."""
        event = "recovery" if status == "resolved" else "incident"
        what = f"{status} {number}"
        notice = Notice(
            event=event, status=status, key=f"run/i/{number}", kind="dead_rank", what=what, next="n", unix_s=1, see="s"
        )
        sent_unix_s = self.now - age_s
        self.queue.queue.put(Message(run="run", host="host", title=what, sent_unix_s=sent_unix_s, notices=(notice,)))
        wait_until(lambda: self.service.received, "the first attempt is on its way")

    def ends(self) -> list[dict[str, Any]]:
        """Let the receiver answer again; return the messages after the one that failed."""
        self.back.set()
        assert self.queue.queue.wait_idle(PATIENCE_S)
        return [request.json for request in self.service.received[1:]]


def test_what_is_late_after_an_outage_is_one_message_and_what_is_new_follows(service: Receiver) -> None:
    outage = Outage(service)
    for number in range(60):
        outage.happens(number, age_s=LATE_S + 600 - number)
    outage.happens(60, age_s=1.0)
    late, new = outage.ends()
    assert late["title"] == "[open] run: up to 13 min late: 60 incidents (60 dead rank), newest: open 59"
    assert [one["what"] for one in late["notices"]] == [f"open {number}" for number in range(10, 60)]
    assert (late["left_out"], late["late_s"]) == (10, LATE_S + 600)
    assert late["text"].split("\n")[2] == "open 59"
    assert (new["title"], new["late_s"]) == ("open 60", 0.0)
    assert outage.queue.outcomes() == {"sent": 61}
    assert outage.queue.counts.attempts == {"hook": 3}


def test_a_late_incident_that_is_over_calls_nobody(service: Receiver) -> None:
    outage = Outage(service, **{"2": "resolved", "3": "open"})
    outage.happens(1, age_s=900.0)
    outage.happens(1, "resolved", age_s=800.0)
    outage.happens(2, age_s=700.0)
    (late,) = outage.ends()
    assert late["title"].startswith("[resolved] run: up to 15 min late: 2 incidents")
    assert [(one["status"], one["event"]) for one in late["notices"]] == [("resolved", "recovery")] * 2
    assert [one["what"] for one in late["notices"]] == [
        "Incident 1, recovered meanwhile: resolved 1",
        "Incident 2, recovered meanwhile: open 2",
    ]


def test_a_late_incident_that_is_open_gives_the_message_its_status(service: Receiver) -> None:
    outage = Outage(service)
    outage.happens(1, age_s=900.0)
    outage.happens(2, age_s=800.0)
    outage.happens(2, "resolved", age_s=700.0)
    outage.happens(3, "resolved", age_s=600.0)  # its incident was sent before the outage
    (late,) = outage.ends()
    assert late["title"].startswith("[open] run: ")
    assert [one["what"] for one in late["notices"]] == [
        "Incident 2, recovered meanwhile: resolved 2",
        "resolved 3",
        "open 1",
    ]


def test_one_late_message_that_is_still_true_stays_as_it_is(service: Receiver) -> None:
    outage = Outage(service)
    outage.happens(1, age_s=900.0)
    (late,) = outage.ends()
    assert (late["title"], late["late_s"]) == ("open 1", 0.0)


def test_of_late_messages_only_those_that_are_too_old_are_given_up(service: Receiver) -> None:
    outage = Outage(service)
    outage.happens(1, age_s=GIVE_UP_S + 1)
    outage.happens(2, age_s=GIVE_UP_S - 100)
    outage.happens(3, age_s=GIVE_UP_S - 200)
    service.answers[1:1] = [Answer(503)]
    *_, sent = outage.ends()
    assert [one["what"] for one in sent["notices"]] == ["open 2", "open 3"]
    assert outage.queue.outcomes() == {"gave_up": 1, "sent": 2}


def test_a_full_queue_drops_the_oldest_also_while_late_messages_are_on_their_way() -> None:
    stuck = Stuck()
    queue = Queue(stuck, lambda: 1e6)
    queue.queue.put(message(0, unix_s=1e6))
    assert stuck.entered.wait(PATIENCE_S)
    for number in range(1, MOST_WAITING):
        queue.queue.put(message(number, unix_s=1e6 - 600))
    stuck.entered.clear()
    stuck.release.set()
    stuck.release = threading.Event()
    assert stuck.entered.wait(PATIENCE_S)  # all that are left, as one message
    for number in range(MOST_WAITING, MOST_WAITING + 11):
        queue.queue.put(message(number, unix_s=1e6))
    waiting = [one.title for one in queue.queue.waiting]
    assert waiting == [f"title {number}" for number in range(11, MOST_WAITING + 11)]
    assert queue.outcomes() == {"sent": 1, "dropped": 10}
    stuck.release.set()
    assert queue.queue.wait_idle(PATIENCE_S)
    assert queue.outcomes() == {"sent": MOST_WAITING + 1, "dropped": 10}
