"""Secrets in what a rank said last do not reach chat, mail and webhooks."""

from holdfast_daemon.notify.message_text import RunText
from holdfast_proto.v1 import store_pb2 as store

SAID = 'RuntimeError("no login: password=SECRET-1, https://me:SECRET-2@host.example/q?token=SECRET-3")'


def test_an_incident_its_end_and_the_end_of_the_run_show_no_secret() -> None:
    wording = RunText(store.RunSpec(run="r"))
    incident = store.Incident(id="0001-dead-rank", state=store.INCIDENT_STATE_OPEN)
    incident.verdict.kind, incident.verdict.message = store.VERDICT_KIND_DEAD_RANK, f"rank 1 died: {SAID}"
    failed = store.Incident()
    failed.CopyFrom(incident)
    failed.state = store.INCIDENT_STATE_FAILED
    failed.actions.add(what=f"it fails each time: {SAID}")
    ended = store.CoordinatorState(phase=store.RUN_PHASE_FAILED, outcome=f"rank 1 died: {SAID}", newest_step=3)
    notices = [wording.of_incident(incident), wording.of_incident(failed), wording.of_given_up(failed)]
    for notice in (*notices, wording.of_end(ended)):
        assert "SECRET" not in notice.what + notice.next
        assert "password=[hidden]" in notice.what
        assert "host.example" in notice.what
