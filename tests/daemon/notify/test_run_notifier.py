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


@pytest.fixture
def make_state(service: Receiver, tmp_path: Path) -> Callable[..., CoreState]:
    """Return a function that makes the state of a run whose messages go to the receiver."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)

    def make(*incidents: store.Incident, instance: str = "i", heartbeat: bool = False, **changes: Any) -> CoreState:
        hook = store.WebhookChannel(url=f"{service.url}/hook", bearer_token_file=str(token))
        notify = store.Notify(
            on=changes.pop("on", ["incident", "recovery", "failure", "end"]),
            ignored=changes.pop("ignored", []),
            min_interval_s=changes.pop("min_interval_s", 0.0),
            console_url=changes.pop("console_url", ""),
            channels=[store.NotifyChannel(name="webhook", webhook=hook)],
        )
        if heartbeat:
            file = tmp_path / "heartbeat"
            file.write_text(f"{service.url}/ping/x")
            notify.heartbeat.CopyFrom(store.Heartbeat(url_file=str(file), every_s=10.0))
        spec = store.RunSpec(
            run=RUN, nodes=1, ranks_per_node=2, instance=instance, command=["x"], mode=store.MODE_ACT, notify=notify
        )
        state = coordinator.begin(spec)
        record = store.CoordinatorState()
        record.CopyFrom(state.record)
        for name, value in changes.items():
            setattr(record, name, value)
        return dataclasses.replace(state, record=record, incidents={one.id: one for one in incidents})

    return make


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


def reported(service: Receiver) -> list[tuple[str, str]]:
    return [(one["key"].rpartition("/")[2], one["status"]) for one in service.notices()]


def lead(notifier: RunNotifier, state: CoreState, now: float | None = None) -> None:
    """Begin to lead with a state, and tick once."""
    notifier.assume(state, NOW if now is None else now)
    notifier.see(state, NOW if now is None else now)


def finish(notifier: RunNotifier) -> bool:
    return notifier.wait_idle(time.monotonic() + PATIENCE_S)


def test_an_incident_its_recovery_and_the_end_in_this_order(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    notifier = RunNotifier(RUN, tmp_path, host="head")
    lead(notifier, make_state())
    notifier.see(make_state(incident(1)), NOW + 1)
    over = incident(1, RECOVERED, recovered_unix_s=104.0, lost_steps=2)
    notifier.see(make_state(over), NOW + 2)
    notifier.see(make_state(over), NOW + 2.1)
    ended = make_state(over, phase=store.RUN_PHASE_FINISHED, outcome="finished", newest_step=9)
    notifier.see(ended, NOW + 3)
    notifier.see(ended, NOW + 3.1)
    assert finish(notifier)
    assert reported(service) == [("0001-dead-rank", "open"), ("0001-dead-rank", "resolved"), ("i", "finished")]
    first, second, last = service.notices()
    assert first["what"] == "rank 1 died 1"
    assert first["see"] == "holdfast incidents show 0001-dead-rank --run run"
    assert second["what"] == "Recovered 4.0 s after detection, 2 steps lost: rank 1 died 1"
    assert last["what"] == "The run has ended after step 9: finished"
    assert {request.json["host"] for request in service.received} == {"head"}


def test_a_restarted_daemon_repeats_nothing_and_loses_nothing(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    service.answers = [Answer(), Answer(500)]
    first = RunNotifier(RUN, tmp_path)
    now = time.time()  # the age of a message decides whether it is tried again
    lead(first, make_state(), now)
    first.see(make_state(incident(1)), now + 1)
    wait_until(lambda: len(service.received) == 1, "the first message has arrived")
    first.see(make_state(incident(1), incident(2)), now + 2)
    wait_until(lambda: len(service.received) > 1, "the second message was tried")
    assert not first.wait_idle(time.monotonic())  # as a daemon that ends while the receiver is down
    file = run_files.notifications(tmp_path, RUN)
    wait_until(lambda: json.loads(file.read_text())["queued"]["webhook"], "the file has the second message")
    assert file.stat().st_mode & 0o777 == 0o600
    service.received.clear()
    service.answers = [Answer()]
    second = RunNotifier(RUN, tmp_path)
    lead(second, make_state(incident(1), incident(2)), time.time())
    assert finish(second)
    assert reported(service) == [("0002-dead-rank", "open")]
    assert json.loads(file.read_text())["queued"] == {"webhook": []}


def test_notices_that_wait_for_their_group_survive_a_restart(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    first = RunNotifier(RUN, tmp_path)
    lead(first, make_state(min_interval_s=60.0))
    first.see(make_state(incident(1), min_interval_s=60.0), NOW + 1)
    first.see(make_state(incident(1), incident(2), min_interval_s=60.0), NOW + 2)
    finish(first)
    assert reported(service) == [("0001-dead-rank", "open")]
    second = RunNotifier(RUN, tmp_path)
    lead(second, make_state(incident(1), incident(2), min_interval_s=60.0))
    finish(second)
    assert reported(service)[1:] == [("0002-dead-rank", "open")]


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"version": 1}', '{"version": 9, "instance": "i"}'])
def test_a_lost_or_damaged_file_costs_one_message_for_each_open_incident(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        run_files.notifications(tmp_path, RUN).write_text(content)
    closed = [incident(1, RECOVERED), incident(2, store.INCIDENT_STATE_NOTED), incident(3, store.INCIDENT_STATE_FAILED)]
    notifier = RunNotifier(RUN, tmp_path)
    state = make_state(*closed, incident(4), incident(5, store.INCIDENT_STATE_STANDSTILL))
    lead(notifier, state)
    notifier.see(state, NOW + 1)
    finish(notifier)
    assert reported(service) == [("0004-dead-rank", "open"), ("0005-dead-rank", "open")]


def test_a_new_leader_reports_an_end_only_if_it_is_fresh(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    ended = make_state(phase=store.RUN_PHASE_FAILED, outcome="too many restarts", phase_since_unix_s=NOW)
    old = RunNotifier(RUN, tmp_path / "a")
    lead(old, ended, NOW + 1 + FRESH_S)
    assert finish(old)
    assert reported(service) == []
    fresh = RunNotifier(RUN, tmp_path / "b")
    (tmp_path / "b").mkdir()
    lead(fresh, ended, NOW + 1)
    assert finish(fresh)
    assert reported(service) == [("i", "failed")]
    assert service.notices()[0]["event"] == "failure"


def test_what_another_leader_has_seen_end_is_not_reported(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state(incident(1)))
    notifier.leave(NOW + 1)
    lead(notifier, make_state(incident(1, RECOVERED), incident(2, RECOVERED), incident(3)), NOW + 100)
    assert finish(notifier)
    assert reported(service) == [("0001-dead-rank", "open"), ("0003-dead-rank", "open")]


def test_a_later_run_of_the_same_name_begins_anew(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state(incident(1)))
    lead(notifier, make_state(incident(1), instance="j"))
    assert finish(notifier)
    wait_until(lambda: len(service.received) == 2, "both have arrived")
    assert sorted(one["key"] for one in service.notices()) == ["run/i/0001-dead-rank", "run/j/0001-dead-rank"]


def test_events_and_kinds_that_nobody_asked_for_are_not_reported(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    slow = incident(2, store.INCIDENT_STATE_NOTED, store.VERDICT_KIND_STRAGGLER)
    wanted = {"on": ["recovery", "failure"], "ignored": ["straggler"]}
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state(**wanted))
    notifier.see(make_state(incident(1), slow, **wanted), NOW + 1)
    resolved = incident(2, store.INCIDENT_STATE_RESOLVED, store.VERDICT_KIND_STRAGGLER)
    notifier.see(make_state(incident(1, RECOVERED, recovered_unix_s=101.0), resolved, **wanted), NOW + 2)
    ended = {"phase": store.RUN_PHASE_FAILED, "outcome": STOPPED_BY_OPERATOR, **wanted}
    notifier.see(make_state(incident(1, RECOVERED), resolved, **ended), NOW + 3)
    assert finish(notifier)
    assert reported(service) == [("0001-dead-rank", "resolved")]


def test_links_lead_to_the_console_and_hold_no_token(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    notifier.see(make_state(incident(1), console_url="https://console.example/holdfast/"), NOW + 1)
    # The channel's settings are those with which the run began: they do not change while it runs.
    assert finish(notifier)
    assert service.notices()[0]["link"] == ""
    other = RunNotifier(RUN, tmp_path / "b")
    lead(other, make_state(incident(1), console_url="https://console.example/holdfast/"))
    assert finish(other)
    link = service.notices()[1]["link"]
    assert link == "https://console.example/holdfast/#/runs/run/incidents/0001-dead-rank"


@pytest.mark.parametrize(("console_url", "link"), [("https://a/holdfast", "https://a/holdfast/"), ("", "")])
def test_the_link_of_a_test_has_the_slash_that_the_page_needs(
    make_state: Callable[..., CoreState], console_url: str, link: str
) -> None:
    assert RunText(make_state(console_url=console_url).spec).of_test(NOW).link == link


def test_the_secret_is_in_the_request_alone(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    service.answers = [Answer(403)]
    state = make_state(incident(1))
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, state)
    assert finish(notifier)
    assert service.received[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert "403" in caplog.text
    assert TOKEN not in caplog.text
    assert TOKEN not in str(state.spec)
    assert TOKEN not in run_files.notifications(tmp_path, RUN).read_text()


def test_a_secret_that_others_can_read_is_logged_once(
    make_state: Callable[..., CoreState], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").touch()
    state = make_state(incident(1))
    (tmp_path / "token").chmod(0o644)
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, state)
    notifier.see(state, NOW + 1)
    assert finish(notifier)
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
    make_state: Callable[..., CoreState],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[store.Notify], object],
) -> None:
    state = make_state(incident(1))
    spoil(state.spec.notify)
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, state)
    notifier.see(state, NOW + 1)
    assert caplog.text.count("notifications failed") == 1
    assert notifier.counts is None


async def test_a_dead_receiver_delays_the_end_of_the_daemon_by_some_seconds_only(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    service.answers = [Answer(500)]
    notifiers = Notifiers(tmp_path)
    notifier = notifiers.of(RUN)
    assert notifiers.of(RUN) is notifier
    lead(notifier, make_state(incident(1)), time.time())
    began_s = time.monotonic()
    await asyncio.wait_for(notifiers.close(patience_s=0.3), PATIENCE_S)
    assert time.monotonic() - began_s >= 0.3
    queued = json.loads(run_files.notifications(tmp_path, RUN).read_text())["queued"]
    assert [one["notices"][0]["key"] for one in queued["webhook"]] == ["run/i/0001-dead-rank"]


def test_a_heartbeat_lasts_as_long_as_the_ticks_and_ends_with_the_run(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    def pings() -> list[tuple[str, bytes]]:
        return [(one.path, one.body) for one in service.received if one.path.startswith("/ping")]

    notifier = RunNotifier(RUN, tmp_path)
    running = make_state(heartbeat=True)
    lead(notifier, running, NOW)
    wait_until(lambda: len(pings()) == 1, "the first sign of life has arrived")
    notifier.see(running, NOW + 9.9)
    until_pinged(notifier, running, NOW + 10, lambda: len(pings()) == 2)
    until_pinged(notifier, running, NOW + 20, lambda: len(pings()) == 3)
    failed = make_state(heartbeat=True, phase=store.RUN_PHASE_FAILED, outcome="no luck")
    notifier.see(failed, NOW + 21)
    notifier.see(failed, NOW + 40)
    assert finish(notifier)
    assert [path for path, _ in pings()] == ["/ping/x", "/ping/x", "/ping/x", "/ping/x/fail"]
    assert b"no luck" in pings()[-1][1]
    assert notifier.counts is not None
    assert notifier.counts.outcomes["heartbeat", "sent"] == 4


def until_pinged(notifier: RunNotifier, state: CoreState, now: float, is_done: Callable[[], bool]) -> None:
    """Tick at one and the same time until a ping has arrived: the one before may still be under way."""

    def tick() -> bool:
        notifier.see(state, now)
        return is_done()

    wait_until(tick, "the next sign of life has arrived")


def test_a_failed_sign_of_life_is_counted_and_the_next_one_comes(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.answers = [Answer(500), Answer()]
    notifier = RunNotifier(RUN, tmp_path)
    running = make_state(heartbeat=True)
    lead(notifier, running, NOW)
    counts = notifier.counts
    assert counts is not None
    wait_until(lambda: counts.outcomes["heartbeat", "gave_up"] == 1, "the first one has failed")
    until_pinged(notifier, running, NOW + 10, lambda: counts.outcomes["heartbeat", "sent"] == 1)
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


def test_a_run_that_is_left_as_it_is_needs_a_person(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    stuck = incident(1, store.INCIDENT_STATE_STANDSTILL)
    left = incident(1, store.INCIDENT_STATE_STANDSTILL)
    left.actions.add(unix_s=101.0, what="not restarted again: 3 restarts at this step have not helped")
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    notifier.see(make_state(stuck, standstill_incident=stuck.id), NOW + 1)
    given_up = make_state(left, standstill_incident=stuck.id, uncertain_restarts=3)
    notifier.see(given_up, NOW + 2)
    notifier.see(given_up, NOW + 3)
    notifier.see(make_state(incident(1, store.INCIDENT_STATE_RESOLVED)), NOW + 4)
    assert finish(notifier)
    assert [(one["event"], one["status"]) for one in service.notices()] == [
        ("incident", "open"),
        ("failure", "open"),
        ("recovery", "resolved"),
    ]
    assert "3 restarts at this step have not helped" in service.notices()[1]["what"]
    assert "holdfast stop --run run" in service.notices()[1]["next"]


def test_a_verdict_that_newer_evidence_replaces_is_reported_and_closed_when_another_one_explains_it(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    replaced = incident(1, store.INCIDENT_STATE_STANDSTILL, superseded=1)
    replaced.verdict.culprits[:] = [3]
    closed = incident(1, store.INCIDENT_STATE_RESOLVED, superseded=1)
    closed.actions.add(unix_s=102.0, what="another verdict explains it: rank 7 was killed")
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    for after_s, state in enumerate((incident(1, store.INCIDENT_STATE_STANDSTILL), replaced, replaced, closed), 1):
        notifier.see(make_state(state), NOW + after_s)
    assert finish(notifier)
    assert [one["status"] for one in service.notices()] == ["open", "open", "resolved"]
    assert [rank["rank"] for rank in service.notices()[1]["culprits"]] == [3]
    assert "(another verdict explains it: rank 7 was killed)" in service.notices()[2]["what"]


def test_a_restart_that_does_not_help_closes_its_incident(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    notifier.see(make_state(incident(1)), NOW + 1)
    failed = incident(1, store.INCIDENT_STATE_FAILED)
    failed.actions.add(unix_s=102.0, what="the next generation failed before its first step")
    notifier.see(make_state(failed, incident(2)), NOW + 2)
    assert finish(notifier)
    assert reported(service) == [("0001-dead-rank", "open"), ("0001-dead-rank", "failed"), ("0002-dead-rank", "open")]
    assert "(the next generation failed before its first step)" in service.notices()[1]["what"]
    assert len(service.received) == 2


def test_an_incident_of_the_loss_is_reported_once_the_policy_wants_it(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    noted = store.INCIDENT_STATE_NOTED
    loss: dict[str, Any] = {"kind": store.VERDICT_KIND_NON_FINITE, "loss_tier": store.LOSS_TIER_NON_FINITE}
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    notifier.see(make_state(incident(1, noted, **loss)), NOW + 1)
    notifier.see(make_state(incident(1, noted, **loss), incident(2)), NOW + 2)
    told = incident(1, noted, notify=True, **loss)
    notifier.see(make_state(told, incident(2)), NOW + 3)
    notifier.see(make_state(told, incident(2)), NOW + 4)
    assert finish(notifier)
    assert reported(service) == [("0002-dead-rank", "open"), ("0001-dead-rank", "noted")]


def test_an_incident_of_the_loss_that_nobody_wants_reported_is_not_reported_when_it_ends(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    spike: dict[str, Any] = {"kind": store.VERDICT_KIND_LOSS_SPIKE, "loss_tier": store.LOSS_TIER_SPIKE}
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    notifier.see(make_state(incident(1, store.INCIDENT_STATE_NOTED, **spike)), NOW + 1)
    notifier.see(make_state(incident(1, store.INCIDENT_STATE_RESOLVED, **spike)), NOW + 2)
    assert finish(notifier)
    assert reported(service) == []


def test_a_run_that_finishes_with_a_bad_loss_is_no_success(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    ended = make_state(phase=store.RUN_PHASE_FINISHED, outcome="finished", newest_step=9)
    ended.record.loss_counts.nonfinite_since = 4
    notifier.see(ended, NOW + 1)
    assert finish(notifier)
    (last,) = service.notices()
    assert (last["event"], last["status"]) == ("failure", "failed")
    assert (
        last["what"] == "The run has ended after step 9: finished, but its loss was not finite from step 4 to the end"
    )


def test_a_planned_stop_is_called_stopped_and_a_bad_loss_is_no_reason_to_start_again(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    notifier = RunNotifier(RUN, tmp_path)
    lead(notifier, make_state())
    outcome = "stopped after step 9"
    ended = make_state(phase=store.RUN_PHASE_FINISHED, outcome=outcome, newest_step=9, left_step=9)
    notifier.see(ended, NOW + 1)
    other = make_state(instance="j")
    lead(notifier, other)
    bad = make_state(instance="j", phase=store.RUN_PHASE_FAILED, outcome="stopped at step 9 because of ...")
    bad.record.loss_counts.stopped_by = store.LOSS_TIER_NON_FINITE
    notifier.see(bad, NOW + 2)
    assert finish(notifier)
    stopped, failed = sorted(service.notices(), key=lambda one: str(one["status"]), reverse=True)
    assert (stopped["status"], stopped["event"]) == ("stopped", "end")
    assert "The same command continues it" in stopped["next"]
    assert failed["status"] == "failed"
    assert failed["next"].startswith("Do not start it again as it is")


def test_after_an_outage_an_incident_that_is_over_calls_nobody(
    make_state: Callable[..., CoreState], service: Receiver, tmp_path: Path
) -> None:
    back = threading.Event()
    service.answers = [Answer(503, waits_for=back), Answer()]
    notifier = RunNotifier(RUN, tmp_path)
    only = {"on": ["incident"]}  # no message about the recovery follows
    lead(notifier, make_state(**only), NOW - 600)
    notifier.see(make_state(incident(1), **only), NOW - 600)
    notifier.see(make_state(incident(1), incident(2), **only), NOW - 500)
    notifier.see(make_state(incident(1, RECOVERED), incident(2), **only), NOW - 400)
    wait_until(lambda: service.received, "the first attempt is on its way")
    back.set()
    assert finish(notifier)
    late = service.received[-1].json
    assert late["title"].startswith("[open] run: up to 10 min late: 2 incidents")
    assert [(one["status"], one["what"]) for one in late["notices"]] == [
        ("resolved", "Incident 0001-dead-rank, recovered meanwhile: rank 1 died 1"),
        ("open", "rank 1 died 2"),
    ]
