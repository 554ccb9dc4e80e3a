import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    key, what = f"run/i/{number}", f"what {number}"
    notice = Notice(event="incident", status="open", key=key, what=what, next="next", unix_s=1.0, see="see")
    sent_unix_s = time.time() if unix_s is None else unix_s
    return Message(run="run", host="host", title=f"title {number}", sent_unix_s=sent_unix_s, notices=(notice,))


@pytest.fixture
def service() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


class Queue:
    """A queue of one channel, and how its deliveries ended."""

    def __init__(
        self, channel: Channel, unix_s: Callable[[], float] = time.time, status_now: Callable[[str], str] = lambda _: ""
    ) -> None:
        self.counts = DeliveryCounts(["hook"])
        self.changes = 0
        clocks: Any = {"status_now": status_now, "unix_s": unix_s, "first_pause_s": 0.01}
        self.queue = DeliveryQueue("run", "hook", channel, self.counts, self._changed, **clocks)

    def _changed(self) -> None:
        self.changes += 1

    def put(self, *messages: Message) -> None:
        for one in messages:
            self.queue.put(one)

    def waiting(self) -> list[str]:
        """Return the titles of the messages without an outcome."""
        return [one.title for one in self.queue.waiting]

    def sends(self, *messages: Message) -> dict[str, int]:
        """Put messages, and return the outcomes once nothing waits."""
        self.put(*messages)
        assert self.queue.wait_idle(PATIENCE_S)
        return self.outcomes()

    def outcomes(self) -> dict[str, int]:
        return {outcome: count for (_, outcome), count in self.counts.outcomes.items() if count}


def hook(service: Receiver) -> Queue:
    return Queue(Webhook(f"{service.url}/hook", None, None))


def titles(service: Receiver) -> list[str]:
    return [request.json["title"] for request in service.received]


def test_messages_arrive_in_order_and_are_counted(service: Receiver) -> None:
    queue = hook(service)
    assert queue.sends(*map(message, range(5))) == {"sent": 5}
    assert titles(service) == [f"title {number}" for number in range(5)]
    assert (queue.counts.attempts, queue.changes) == ({"hook": 5}, 5)


@pytest.mark.parametrize("answer", [Answer(500), Answer(503), Answer(408), Answer(429), Answer(closes=True)])
def test_what_may_pass_is_tried_again(service: Receiver, answer: Answer) -> None:
    service.answers = [answer, answer, Answer()]
    queue = hook(service)
    assert queue.sends(message()) == {"sent": 1}
    assert (len(service.received), queue.counts.attempts) == (3, {"hook": 3})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 301, 302, 307])
def test_what_will_not_change_is_not_tried_again(service: Receiver, status: int) -> None:
    service.answers = [Answer(status, {"Location": "/elsewhere"}), Answer()]
    assert hook(service).sends(message(0), message(1)) == {"refused": 1, "sent": 1}
    assert titles(service) == ["title 0", "title 1"]


def test_retry_after_is_obeyed(service: Receiver) -> None:
    service.answers = [Answer(429, {"Retry-After": "1"}), Answer()]
    began_s = time.monotonic()
    assert hook(service).sends(message()) == {"sent": 1}
    assert time.monotonic() - began_s >= 1.0


def test_an_absurd_retry_after_is_bounded_by_the_age_of_the_message(service: Receiver) -> None:
    service.answers = [Answer(429, {"Retry-After": "1e18"})]
    now = time.time()
    queue = Queue(Webhook(service.url, None, None), unix_s=lambda: now)
    assert queue.sends(message(unix_s=now - GIVE_UP_S + 100)) == {"gave_up": 1}


def test_a_message_is_given_up_after_an_hour(service: Receiver) -> None:
    service.answers = [Answer(500)]
    queue = Queue(Webhook(service.url, None, None), unix_s=lambda: 10_000.0)
    assert queue.sends(message(unix_s=10_000.0 - GIVE_UP_S)) == {"gave_up": 1}
    assert len(service.received) == 1


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
    dead.put(message(0))
    assert stuck.entered.wait(PATIENCE_S)
    dead.put(*map(message, range(1, MOST_WAITING + 5)))
    assert alive.sends(message()) == {"sent": 1}
    assert not dead.queue.wait_idle(0.0)
    assert dead.outcomes() == {"dropped": 5}
    assert dead.waiting() == ["title 0", *(f"title {number}" for number in range(6, MOST_WAITING + 5))]
    stuck.release.set()
    dead.sends()


def test_a_closed_queue_keeps_what_has_no_outcome(service: Receiver) -> None:
    service.answers = [Answer(500)]
    queue = hook(service)
    queue.put(message(0))
    wait_until(lambda: service.received, "there was an attempt")
    queue.queue.close()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "notify-hook"], "its thread has ended")
    assert queue.waiting() == ["title 0"]


def test_an_error_of_a_channel_ends_one_message_only(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty:
        def __init__(self) -> None:
            self.sent: list[str] = []

        def send(self, message: Message) -> None:
            self.sent.append(message.title)
            if len(self.sent) == 1:
                raise ZeroDivisionError
            if len(self.sent) == 2:
                raise DeliveryRefusedError("no")

    channel = Faulty()
    assert Queue(channel).sends(*map(message, range(3))) == {"refused": 2, "sent": 1}
    assert channel.sent == ["title 0", "title 1", "title 2"]
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
        sent = message(number, self.now - age_s)
        notice = replace(sent.newest, event=event, status=status, kind="dead_rank", what=what)
        self.queue.put(replace(sent, title=what, notices=(notice,)))
        wait_until(lambda: self.service.received, "the first attempt is on its way")

    def ends(self) -> list[dict[str, Any]]:
        """Let the receiver answer again; return the messages after the one that failed."""
        self.back.set()
        self.queue.sends()
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
    queue.put(message(0, unix_s=1e6))
    assert stuck.entered.wait(PATIENCE_S)
    queue.put(*(message(number, unix_s=1e6 - 600) for number in range(1, MOST_WAITING)))
    stuck.entered.clear()
    stuck.release.set()
    stuck.release = threading.Event()
    assert stuck.entered.wait(PATIENCE_S)  # all that are left, as one message
    queue.put(*(message(number, unix_s=1e6) for number in range(MOST_WAITING, MOST_WAITING + 11)))
    assert queue.waiting() == [f"title {number}" for number in range(11, MOST_WAITING + 11)]
    assert queue.outcomes() == {"sent": 1, "dropped": 10}
    stuck.release.set()
    assert queue.sends() == {"sent": MOST_WAITING + 1, "dropped": 10}
