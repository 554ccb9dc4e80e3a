"""What is reported of a run, over restarts of the daemon and changes of the leader."""

import asyncio
import dataclasses
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_core import coordinator
from holdfast_core.model import CoreState
from holdfast_core.naming import STOPPED_BY_OPERATOR
from holdfast_daemon.notify.channels.building import build, secret_files
from holdfast_daemon.notify.message_text import RunText
from holdfast_daemon.notify.run_news import FRESH_S
from holdfast_daemon.notify.run_notifier import Notifiers, RunNotifier
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import wait_until
from tests.support.receiver import Answer, Receiver, receiver

RUN = "run"
PATIENCE_S = 30.0
TOKEN = "the-token-that-nobody-sees"
NOW = 0.0
"""Time at which the present test begins: the age of a message decides how it is sent."""


@pytest.fixture(autouse=True)
def begin_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "NOW", time.time())


@pytest.fixture
def service() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


class Story:
    """A notifier of a run whose messages go to the receiver, and the states that it sees."""

    def __init__(self, service: Receiver, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.token = folder / "token"
        self.token.write_text(TOKEN)
        self.token.chmod(0o600)
        self.heartbeat = folder / "heartbeat"
        self.heartbeat.write_text(f"{service.url}/ping/x")
        self.notifier = RunNotifier(RUN, folder, host="head")

    def state(
        self, *incidents: store.Incident, instance: str = "i", heartbeat: bool = False, **changes: Any
    ) -> CoreState:
        """Return a state of the run. ``changes``: fields of the notifications, or of the record."""
        hook = store.WebhookChannel(url=f"{self.service.url}/hook", bearer_token_file=str(self.token))
        notify = store.Notify(
            on=changes.pop("on", ["incident", "recovery", "failure", "end"]),
            ignored=changes.pop("ignored", []),
            min_interval_s=changes.pop("min_interval_s", 0.0),
            console_url=changes.pop("console_url", ""),
            channels=[store.NotifyChannel(name="webhook", webhook=hook)],
        )
        if heartbeat:
            notify.heartbeat.CopyFrom(store.Heartbeat(url_file=str(self.heartbeat), every_s=10.0))
        spec = store.RunSpec(
            run=RUN, nodes=1, ranks_per_node=2, instance=instance, command=["x"], mode=store.MODE_ACT, notify=notify
        )
        state = coordinator.begin(spec)
        record = store.CoordinatorState()
        record.CopyFrom(state.record)
        for name, value in changes.items():
            setattr(record, name, value)
        return dataclasses.replace(state, record=record, incidents={one.id: one for one in incidents})

    def restarts(self, folder: Path | None = None) -> None:
        """Let another daemon take the place of the first, with its files or with those of a folder."""
        self.notifier = RunNotifier(RUN, folder or self.folder)

    def leads(self, *incidents: store.Incident, at_s: float = 0.0, **changes: Any) -> None:
        """Begin to lead with a state, so long after NOW, and tick once."""
        self.notifier.assume(self.state(*incidents, **changes), NOW + at_s)
        self.sees(at_s, *incidents, **changes)

    def sees(self, at_s: float, *incidents: store.Incident, **changes: Any) -> None:
        """Tick with a state, so long after NOW."""
        self.notifier.see(self.state(*incidents, **changes), NOW + at_s)

    def notices(self) -> list[dict[str, Any]]:
        """Return the notices of all messages, once they are sent."""
        assert self.notifier.wait_idle(time.monotonic() + PATIENCE_S)
        return self.service.notices()

    def reported(self) -> list[tuple[str, str]]:
        """Return the incident or start, and the status, of all notices."""
        return [(one["key"].rpartition("/")[2], one["status"]) for one in self.notices()]

    def queued(self) -> list[str]:
        """Return the keys of the messages that the file keeps."""
        queued = json.loads(run_files.notifications(self.folder, RUN).read_text())["queued"]
        return [one["notices"][0]["key"] for one in queued["webhook"]]


@pytest.fixture
def story(service: Receiver, tmp_path: Path) -> Story:
    return Story(service, tmp_path)


def incident(
    number: int,
    state: "store.IncidentState" = store.INCIDENT_STATE_OPEN,
    kind: "store.VerdictKind" = store.VERDICT_KIND_DEAD_RANK,
    **changes: Any,
) -> store.Incident:
    verdict = store.Verdict(kind=kind, culprits=[1], message=f"rank 1 died {number}", step=5)
    made = store.Incident(
        id=f"{number:04}-dead-rank", run=RUN, generation=1, verdict=verdict, detected_unix_s=100.0, state=state
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


RECOVERED = store.INCIDENT_STATE_RECOVERED


def test_an_incident_its_recovery_and_the_end_in_this_order(story: Story, service: Receiver) -> None:
    over = incident(1, RECOVERED, recovered_unix_s=104.0, lost_steps=2)
    story.leads()
    story.sees(1, incident(1))
    for at_s in (2, 2.1):
        story.sees(at_s, over)
    for at_s in (3, 3.1):
        story.sees(at_s, over, phase=store.RUN_PHASE_FINISHED, outcome="finished", newest_step=9)
    assert story.reported() == [("0001-dead-rank", "open"), ("0001-dead-rank", "resolved"), ("i", "finished")]
    assert [one["what"] for one in story.notices()] == [
        "rank 1 died 1",
        "Recovered 4.0 s after detection, 2 steps lost: rank 1 died 1",
        "The run has ended after step 9: finished",
    ]
    assert story.notices()[0]["see"] == "holdfast incidents show 0001-dead-rank --run run"
    assert {request.json["host"] for request in service.received} == {"head"}


def test_a_restarted_daemon_repeats_nothing_and_loses_nothing(story: Story, service: Receiver) -> None:
    service.answers = [Answer(), Answer(500)]
    story.leads()
    story.sees(1, incident(1))
    wait_until(lambda: len(service.received) == 1, "the first message has arrived")
    story.sees(2, incident(1), incident(2))
    wait_until(lambda: len(service.received) > 1, "the second message was tried")
    assert not story.notifier.wait_idle(time.monotonic())  # as a daemon that ends while the receiver is down
    wait_until(story.queued, "the file has the second message")
    assert run_files.notifications(story.folder, RUN).stat().st_mode & 0o777 == 0o600
    service.received.clear()
    service.answers = [Answer()]
    story.restarts()
    story.leads(incident(1), incident(2))
    assert story.reported() == [("0002-dead-rank", "open")]
    assert story.queued() == []


def test_notices_that_wait_for_their_group_survive_a_restart(story: Story) -> None:
    story.leads(min_interval_s=60.0)
    story.sees(1, incident(1), min_interval_s=60.0)
    story.sees(2, incident(1), incident(2), min_interval_s=60.0)
    story.notifier.wait_idle(time.monotonic() + PATIENCE_S)
    assert [one["key"] for one in story.service.notices()] == ["run/i/0001-dead-rank"]
    story.restarts()
    story.leads(incident(1), incident(2), min_interval_s=60.0)
    story.notifier.wait_idle(time.monotonic() + PATIENCE_S)
    assert [one["key"] for one in story.service.notices()[1:]] == ["run/i/0002-dead-rank"]


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"version": 1}', '{"version": 9, "instance": "i"}'])
def test_a_lost_or_damaged_file_costs_one_message_for_each_open_incident(story: Story, content: str | None) -> None:
    if content is not None:
        run_files.notifications(story.folder, RUN).write_text(content)
    closed = [incident(1, RECOVERED), incident(2, store.INCIDENT_STATE_NOTED), incident(3, store.INCIDENT_STATE_FAILED)]
    incidents = (*closed, incident(4), incident(5, store.INCIDENT_STATE_STANDSTILL))
    story.leads(*incidents)
    story.sees(1, *incidents)
    assert story.reported() == [("0004-dead-rank", "open"), ("0005-dead-rank", "open")]


def test_a_new_leader_reports_an_end_only_if_it_is_fresh(story: Story, tmp_path: Path) -> None:
    ended = {"phase": store.RUN_PHASE_FAILED, "outcome": "too many restarts", "phase_since_unix_s": NOW}
    story.restarts(tmp_path / "a")
    story.leads(at_s=1 + FRESH_S, **ended)
    assert story.reported() == []
    (tmp_path / "b").mkdir()
    story.restarts(tmp_path / "b")
    story.leads(at_s=1, **ended)
    assert story.reported() == [("i", "failed")]
    assert story.notices()[0]["event"] == "failure"


def test_what_another_leader_has_seen_end_is_not_reported(story: Story) -> None:
    story.leads(incident(1))
    story.notifier.leave(NOW + 1)
    story.leads(incident(1, RECOVERED), incident(2, RECOVERED), incident(3), at_s=100)
    assert story.reported() == [("0001-dead-rank", "open"), ("0003-dead-rank", "open")]


def test_a_later_run_of_the_same_name_begins_anew(story: Story) -> None:
    story.leads(incident(1))
    story.leads(incident(1), instance="j")
    wait_until(lambda: len(story.notices()) == 2, "both have arrived")
    assert sorted(one["key"] for one in story.notices()) == ["run/i/0001-dead-rank", "run/j/0001-dead-rank"]


def test_events_and_kinds_that_nobody_asked_for_are_not_reported(story: Story) -> None:
    slow = incident(2, store.INCIDENT_STATE_NOTED, store.VERDICT_KIND_STRAGGLER)
    wanted: dict[str, Any] = {"on": ["recovery", "failure"], "ignored": ["straggler"]}
    story.leads(**wanted)
    story.sees(1, incident(1), slow, **wanted)
    resolved = incident(2, store.INCIDENT_STATE_RESOLVED, store.VERDICT_KIND_STRAGGLER)
    story.sees(2, incident(1, RECOVERED, recovered_unix_s=101.0), resolved, **wanted)
    ended = {"phase": store.RUN_PHASE_FAILED, "outcome": STOPPED_BY_OPERATOR, **wanted}
    story.sees(3, incident(1, RECOVERED), resolved, **ended)
    assert story.reported() == [("0001-dead-rank", "resolved")]


def test_links_lead_to_the_console_and_hold_no_token(story: Story) -> None:
    story.leads()
    story.sees(1, incident(1), console_url="https://console.example/holdfast/")
    # The channel's settings are those with which the run began: they do not change while it runs.
    assert story.notices()[0]["link"] == ""
    story.restarts(story.folder / "b")
    story.leads(incident(1), console_url="https://console.example/holdfast/")
    assert story.notices()[1]["link"] == "https://console.example/holdfast/#/runs/run/incidents/0001-dead-rank"


@pytest.mark.parametrize(("console_url", "link"), [("https://a/holdfast", "https://a/holdfast/"), ("", "")])
def test_the_link_of_a_test_has_the_slash_that_the_page_needs(story: Story, console_url: str, link: str) -> None:
    assert RunText(story.state(console_url=console_url).spec).of_test(NOW).link == link


def test_the_secret_is_in_the_request_alone(story: Story, service: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    service.answers = [Answer(403)]
    story.leads(incident(1))
    story.notices()
    assert service.received[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert "403" in caplog.text
    for text in (caplog.text, str(story.state().spec), run_files.notifications(story.folder, RUN).read_text()):
        assert TOKEN not in text


def test_a_secret_that_others_can_read_is_logged_once(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.token.chmod(0o644)
    story.leads(incident(1))
    story.sees(1, incident(1))
    story.notices()
    wait_until(lambda: "chmod 600" in caplog.text, "the warning")
    assert caplog.text.count("chmod 600") == 1


BAD: list[Callable[[store.Notify], object]] = [
    lambda notify: notify.channels[0].ClearField("webhook"),
    lambda notify: notify.channels.add(name="webhook", slack=store.UrlFile(path="/x")),
    lambda notify: notify.channels.add(name="heartbeat", slack=store.UrlFile(path="/x")),
    lambda notify: notify.channels.add(name="a\nb", slack=store.UrlFile(path="/x")),
    lambda notify: notify.channels.add(name="a", command=store.CommandChannel(timeout_s=1.0)),
    lambda notify: notify.channels.add(name="a", command=store.CommandChannel(argv=["x"], timeout_s=float("nan"))),
    lambda notify: setattr(notify, "min_interval_s", float("nan")),
    lambda notify: setattr(notify.heartbeat, "every_s", float("inf")),
]


@pytest.mark.parametrize("spoil", BAD)
def test_the_run_is_led_whether_or_not_notifications_work(
    story: Story, caplog: pytest.LogCaptureFixture, spoil: Callable[[store.Notify], object]
) -> None:
    state = story.state(incident(1))
    spoil(state.spec.notify)
    story.notifier.assume(state, NOW)
    for after_s in (0, 1):
        story.notifier.see(state, NOW + after_s)
    assert caplog.text.count("notifications failed") == 1
    assert story.notifier.counts is None


async def test_a_dead_receiver_delays_the_end_of_the_daemon_by_some_seconds_only(
    story: Story, service: Receiver
) -> None:
    service.answers = [Answer(500)]
    notifiers = Notifiers(story.folder)
    story.notifier = notifiers.of(RUN)
    assert notifiers.of(RUN) is story.notifier
    story.leads(incident(1))
    began_s = time.monotonic()
    await asyncio.wait_for(notifiers.close(patience_s=0.3), PATIENCE_S)
    assert time.monotonic() - began_s >= 0.3
    assert story.queued() == ["run/i/0001-dead-rank"]


def test_a_heartbeat_lasts_as_long_as_the_ticks_and_ends_with_the_run(story: Story, service: Receiver) -> None:
    def pings() -> list[tuple[str, bytes]]:
        return [(one.path, one.body) for one in service.received if one.path.startswith("/ping")]

    story.leads(heartbeat=True)
    wait_until(lambda: len(pings()) == 1, "the first sign of life has arrived")
    story.sees(9.9, heartbeat=True)
    until_pinged(story, 10, lambda: len(pings()) == 2)
    until_pinged(story, 20, lambda: len(pings()) == 3)
    for at_s in (21, 40):
        story.sees(at_s, heartbeat=True, phase=store.RUN_PHASE_FAILED, outcome="no luck")
    story.notices()
    assert [path for path, _ in pings()] == ["/ping/x", "/ping/x", "/ping/x", "/ping/x/fail"]
    assert b"no luck" in pings()[-1][1]
    assert story.notifier.counts is not None
    assert story.notifier.counts.outcomes["heartbeat", "sent"] == 4


def until_pinged(story: Story, at_s: float, is_done: Callable[[], bool]) -> None:
    """Tick at one and the same time until a ping has arrived: the one before may still be under way."""

    def tick() -> bool:
        story.sees(at_s, heartbeat=True)
        return is_done()

    wait_until(tick, "the next sign of life has arrived")


def test_a_failed_sign_of_life_is_counted_and_the_next_one_comes(
    story: Story, service: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    service.answers = [Answer(500), Answer()]
    story.leads(heartbeat=True)
    counts = story.notifier.counts
    assert counts is not None
    wait_until(lambda: counts.outcomes["heartbeat", "gave_up"] == 1, "the first one has failed")
    until_pinged(story, 10, lambda: counts.outcomes["heartbeat", "sent"] == 1)
    assert counts.attempts["heartbeat"] == 2
    assert "the heartbeat failed: the service answers 500" in caplog.text
    assert "/ping/x" not in caplog.text


def test_every_kind_of_channel_can_be_built() -> None:
    kinds = [
        store.NotifyChannel(name="a", webhook=store.WebhookChannel(url="http://a", bearer_token_file="/t")),
        store.NotifyChannel(name="b", slack=store.UrlFile(path="/s")),
        store.NotifyChannel(name="c", discord=store.UrlFile(path="/d")),
        store.NotifyChannel(name="d", command=store.CommandChannel(argv=["x"], timeout_s=1.0)),
        store.NotifyChannel(name="e", email=store.EmailChannel(host="h", password_file="/p")),
    ]
    assert len({type(build(channel)) for channel in kinds}) == 5
    found = secret_files(store.Notify(channels=kinds, heartbeat=store.Heartbeat(url_file="/h", fail_url_file="/f")))
    assert {str(path) for path in found} == {"/t", "/s", "/d", "/p", "/h", "/f"}
    with pytest.raises(ValueError, match="this version does not know"):
        build(store.NotifyChannel(name="z"))


def test_a_run_that_is_left_as_it_is_needs_a_person(story: Story) -> None:
    stuck, left = (incident(1, store.INCIDENT_STATE_STANDSTILL) for _ in range(2))
    left.actions.add(unix_s=101.0, what="not restarted again: 3 restarts at this step have not helped")
    story.leads()
    story.sees(1, stuck, standstill_incident=stuck.id)
    for at_s in (2, 3):
        story.sees(at_s, left, standstill_incident=stuck.id, uncertain_restarts=3)
    story.sees(4, incident(1, store.INCIDENT_STATE_RESOLVED))
    assert [(one["event"], one["status"]) for one in story.notices()] == [
        ("incident", "open"),
        ("failure", "open"),
        ("recovery", "resolved"),
    ]
    assert "3 restarts at this step have not helped" in story.notices()[1]["what"]
    assert "holdfast stop --run run" in story.notices()[1]["next"]


def test_a_verdict_that_newer_evidence_replaces_is_reported_and_closed_when_another_one_explains_it(
    story: Story,
) -> None:
    replaced = incident(1, store.INCIDENT_STATE_STANDSTILL, superseded=1)
    replaced.verdict.culprits[:] = [3]
    closed = incident(1, store.INCIDENT_STATE_RESOLVED, superseded=1)
    closed.actions.add(unix_s=102.0, what="another verdict explains it: rank 7 was killed")
    story.leads()
    for at_s, one in enumerate((incident(1, store.INCIDENT_STATE_STANDSTILL), replaced, replaced, closed), 1):
        story.sees(at_s, one)
    assert [one["status"] for one in story.notices()] == ["open", "open", "resolved"]
    assert [rank["rank"] for rank in story.notices()[1]["culprits"]] == [3]
    assert "(another verdict explains it: rank 7 was killed)" in story.notices()[2]["what"]


def test_a_restart_that_does_not_help_closes_its_incident(story: Story) -> None:
    story.leads()
    story.sees(1, incident(1))
    failed = incident(1, store.INCIDENT_STATE_FAILED)
    failed.actions.add(unix_s=102.0, what="the next generation failed before its first step")
    story.sees(2, failed, incident(2))
    assert story.reported() == [("0001-dead-rank", "open"), ("0001-dead-rank", "failed"), ("0002-dead-rank", "open")]
    assert "(the next generation failed before its first step)" in story.notices()[1]["what"]
    assert len(story.service.received) == 2


def test_an_incident_of_the_loss_is_reported_once_the_policy_wants_it(story: Story) -> None:
    noted = store.INCIDENT_STATE_NOTED
    loss: dict[str, Any] = {"kind": store.VERDICT_KIND_NON_FINITE, "loss_tier": store.LOSS_TIER_NON_FINITE}
    story.leads()
    story.sees(1, incident(1, noted, **loss))
    story.sees(2, incident(1, noted, **loss), incident(2))
    told = incident(1, noted, notify=True, **loss)
    story.sees(3, told, incident(2))
    story.sees(4, told, incident(2))
    assert story.reported() == [("0002-dead-rank", "open"), ("0001-dead-rank", "noted")]


def test_an_incident_of_the_loss_that_nobody_wants_reported_is_not_reported_when_it_ends(story: Story) -> None:
    spike: dict[str, Any] = {"kind": store.VERDICT_KIND_LOSS_SPIKE, "loss_tier": store.LOSS_TIER_SPIKE}
    story.leads()
    story.sees(1, incident(1, store.INCIDENT_STATE_NOTED, **spike))
    story.sees(2, incident(1, store.INCIDENT_STATE_RESOLVED, **spike))
    assert story.reported() == []


def test_a_run_that_finishes_with_a_bad_loss_is_no_success(story: Story) -> None:
    story.leads()
    ended = story.state(phase=store.RUN_PHASE_FINISHED, outcome="finished", newest_step=9)
    ended.record.loss_counts.nonfinite_since = 4
    story.notifier.see(ended, NOW + 1)
    (last,) = story.notices()
    assert (last["event"], last["status"]) == ("failure", "failed")
    assert last["what"].endswith("after step 9: finished, but its loss was not finite from step 4 to the end")


def test_a_planned_stop_is_called_stopped_and_a_bad_loss_is_no_reason_to_start_again(story: Story) -> None:
    story.leads()
    story.sees(1, phase=store.RUN_PHASE_FINISHED, outcome="stopped after step 9", newest_step=9, left_step=9)
    story.leads(instance="j")
    bad = story.state(instance="j", phase=store.RUN_PHASE_FAILED, outcome="stopped at step 9 because of ...")
    bad.record.loss_counts.stopped_by = store.LOSS_TIER_NON_FINITE
    story.notifier.see(bad, NOW + 2)
    stopped, failed = sorted(story.notices(), key=lambda one: str(one["status"]), reverse=True)
    assert (stopped["status"], stopped["event"]) == ("stopped", "end")
    assert "The same command continues it" in stopped["next"]
    assert failed["status"] == "failed"
    assert failed["next"].startswith("Do not start it again as it is")


def test_after_an_outage_an_incident_that_is_over_calls_nobody(story: Story, service: Receiver) -> None:
    back = threading.Event()
    service.answers = [Answer(503, waits_for=back), Answer()]
    only: dict[str, Any] = {"on": ["incident"]}  # no message about the recovery follows
    story.leads(**only, at_s=-600)
    story.sees(-600, incident(1), **only)
    story.sees(-500, incident(1), incident(2), **only)
    story.sees(-400, incident(1, RECOVERED), incident(2), **only)
    wait_until(lambda: service.received, "the first attempt is on its way")
    back.set()
    story.notices()
    late = service.received[-1].json
    assert late["title"].startswith("[open] run: up to 10 min late: 2 incidents")
    assert [(one["status"], one["what"]) for one in late["notices"]] == [
        ("resolved", "Incident 0001-dead-rank, recovered meanwhile: rank 1 died 1"),
        ("open", "rank 1 died 2"),
    ]
