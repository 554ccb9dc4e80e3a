"""Every page of the console, over HTTP."""

import http.client
import io
import json
import math
import tarfile
from pathlib import Path

import pytest

from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.format.bad_loss import BadLossRecord, bad_loss_name
from holdfast_checkpoint.format.shard_index import step_directory
from holdfast_core.model import Logged
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_daemon.console.serving.static_files import StaticFolder
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import TIME_USES
from tests.daemon.console.conftest import advance, change_state
from tests.support.console_server import PAST_STEPS, SimulatedConsole, keep_evidence

RUN = "/api/runs/llama-7b"
INCIDENT = f"{RUN}/incidents/0001-hung-collective"


def test_a_browser_logs_in_with_the_token_and_out_again(console: SimulatedConsole) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", console.port)

    def ask(method: str, path: str, body: object = None, cookie: str = "") -> http.client.HTTPResponse:
        headers = {"Origin": console.origin, **({"Cookie": cookie} if cookie else {})}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()

    answer = ask("POST", "/api/login", {"token": console.viewer})
    assert json.loads(answer.read()) == {"role": "viewer"}
    given = str(answer.headers["set-cookie"])
    assert f"holdfast_{console.port}=" in given
    assert {"HttpOnly", "SameSite=strict"} <= set(given.split("; "))
    assert "Path" not in given  # the browser takes that of the login: it may have the prefix of a proxy
    cookie = given.partition(";")[0]
    assert console.viewer not in cookie
    session = json.loads(ask("GET", "/api/session", cookie=cookie).read())
    assert (session["role"], session["daemon"], session["console"]["port"]) == ("viewer", "simulated", console.port)
    ask("POST", "/api/logout", {}, cookie).read()
    answer = ask("GET", "/api/session", cookie=cookie)
    assert (answer.status, "error" in json.loads(answer.read())) == (401, True)
    connection.close()


def test_the_list_of_runs_and_the_page_of_one(console: SimulatedConsole) -> None:
    (row,) = console.get("/api/runs")["runs"]
    frame = console.get(RUN)
    assert {name: frame[name] for name in row} == row
    assert (row["run"], row["state"], row["state_text"], row["health"]) == ("llama-7b", "running", "trains", "ok")
    assert (row["step"], row["steps_until"], row["ranks"], row["incidents"]) == (9, 10_000, 8, 1)
    assert row["goodput_ratio"] == pytest.approx(0.95)
    assert set(frame["time_use_s"]) == set(TIME_USES)
    seconds = frame["time_use_s"]
    assert frame["goodput_ratio"] == round(seconds["productive"] / sum(seconds.values()), 4)
    assert frame["wall_s"] == pytest.approx(sum(frame["time_use_s"].values()), abs=0.5)
    assert frame["progress"] == {"ratio": 0.001, "left_s": 4995}
    assert frame["rank_counts"] == {"starting": 0, "running": 8, "exited": 0, "stalled": 0}
    assert frame["telemetry"]["loss"] == pytest.approx(row["loss"], rel=1e-3)
    possible = ("checkpoint", "stop", "release", "inject", "stacks", "acknowledge")
    assert frame["actions"] == dict.fromkeys(possible, "")
    assert frame["attention"] is None
    assert [one["id"] for one in frame["incidents_list"]] == ["0001-hung-collective"]
    assert (frame["newest_checkpoint"], frame["checkpoints"]["committed"]) == (20, [10, 20])


def test_a_number_that_is_not_finite_is_told_from_one_that_is_not_reported(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.report(loss=math.nan, grad_norm=math.inf, validation_loss=None))
    frame = console.get(RUN)
    assert frame["nonfinite"] == ["loss", "grad_norm"]
    assert frame["loss"] is frame["telemetry"]["grad_norm"] is frame["telemetry"]["validation_loss"] is None
    assert console.get("/api/runs")["runs"][0]["nonfinite"] == ["loss", "grad_norm"]
    console.on_loop(lambda: console.run.report(loss=2.0, grad_norm=None))
    assert console.get(RUN)["nonfinite"] == []


def test_a_run_whose_loss_is_not_finite_is_bad_until_an_operator_acknowledges_it(console: SimulatedConsole) -> None:
    incident = console.on_loop(console.run.turn_nan)
    console.on_loop(lambda: console.run.advance(3600.0))
    frame = console.get(RUN)
    assert (frame["health"], frame["attention"]["incident"]) == ("bad", incident.id)
    assert frame["attention"]["next"].endswith("start it again with --continue-from 20.")
    assert frame["state_text"] == "trains, but its loss is not finite since step 10"
    assert console.get("/api/runs")["runs"][0]["health"] == "bad"
    assert frame["attention"]["can_be_acknowledged"]
    answer = console.get(f"{RUN}/actions/acknowledge", body={"incident": incident.id})
    assert answer == {"done": f"incident {incident.id} is acknowledged"}
    frame = console.get(RUN)
    assert (frame["health"], frame["attention"]) == ("attention", None)
    assert not console.get(f"{RUN}/incidents/{incident.id}")["can_be_acknowledged"]


def test_an_incident_shows_where_its_culprits_run_and_how_many_wait(console: SimulatedConsole) -> None:
    incident = console.on_loop(lambda: console.run.judge(3))
    incident.culprits.add(rank=3, node="node-2", pid=4711)
    incident.nodes = 2
    for edge in incident.verdict.waits:
        edge.waiters = 999
    incident.verdict.waiting_ranks = 999
    page = console.get(f"{RUN}/incidents/{incident.id}")
    assert page["what"].endswith(" (rank 3: node-2, pid 4711)")
    assert (page["places"], page["waiting_ranks"]) == ([{"rank": 3, "node": "node-2", "pid": 4711}], 999)
    waits = "ranks 0, 1, 2, 4, 5, 6, 7 and 992 more wait for rank 3 in gloo:all_reduce"
    assert any(line.startswith(waits) for line in page["why"])
    assert console.get(RUN)["attention"]["what"] == page["what"]


def test_what_the_script_logs_has_its_own_names(console: SimulatedConsole) -> None:
    assert console.get(RUN)["logged"] == []
    logged = {"kl": Logged(math.nan, 4, 0, 1), "a/b": Logged(0.5, -1, 0, 1)}
    console.on_loop(lambda: console.run.report(logged=logged))
    assert console.get(RUN)["logged"] == [
        {"name": "a/b", "value": 0.5, "step": -1},
        {"name": "kl", "value": None, "step": 4},
    ]


def test_the_ranks_in_every_colour(console: SimulatedConsole) -> None:
    advance(console, 5.0, console.run.kill, 5)
    health = console.get(f"{RUN}/ranks")
    assert (health["count"], health["axes"]) == (8, [{"name": a, "size": 2} for a in ("pp", "dp", "tp")])
    assert len({tuple(place) for place in health["places"]}) == 8
    assert (health["nodes"], health["node_of"]) == (["node0000"], [0] * 8)
    words = [health["legend"]["words"][value] for value in health["values"]]
    assert words == ["exited" if rank == 5 else "waiting" for rank in range(8)]
    assert health["odd"][0] == 5
    for colour, kind in (("phase", "words"), ("step_time", "range"), ("memory", "range"), ("utilisation", "range")):
        found = console.get(f"{RUN}/ranks?colour={colour}")
        assert (found["legend"]["kind"], len(found["values"])) == (kind, 8)
        assert None not in found["values"]


def test_one_rank(console: SimulatedConsole) -> None:
    advance(console, 5.0, console.run.hang, 3)
    hung, waiting = console.get(f"{RUN}/ranks/3"), console.get(f"{RUN}/ranks/4")
    assert (hung["process_state"], hung["life"], hung["pid"], hung["pending"]) == ("T", "running", 10_003, [])
    assert waiting["pending"] == [{"group": "dp", "op": "gloo:all_reduce", "seq": 21}]
    assert waiting["stalled_s"] == pytest.approx(5.0)
    assert (waiting["phase"], waiting["phase_text"]) == ("forward_backward", "forward backward")
    assert waiting["coordinates"] == {"pp": 0, "dp": 1, "tp": 0}
    assert "train.py:88" in hung["stack"]["text"]
    assert (hung["stack"]["incident"], hung["stack"]["generation"]) == ("0001-hung-collective", None)
    assert hung["stack"]["unix_s"] == console.run.incidents["0001-hung-collective"].detected_unix_s


def test_the_end_of_a_log(console: SimulatedConsole, tmp_path: Path) -> None:
    answer = console.get(f"{RUN}/ranks/3/log?bytes=60")
    assert answer["text"] == "rank 3: step 1998 done\nrank 3: step 1999 done\n"
    assert answer["path"] == str(run_files.rank_log(tmp_path, 1, 3))
    run_files.agent_record(tmp_path, "node0000").unlink()
    answer = console.get(f"{RUN}/ranks/3/log")
    assert answer["text"] == ""
    assert answer["note"] == "the log is on node node0000: `holdfast logs --rank 3` shows it there"


def test_incidents_their_story_and_evidence(console: SimulatedConsole, tmp_path: Path) -> None:
    opened = console.on_loop(lambda: console.run.judge(2))
    keep_evidence(tmp_path, console.run, opened.id)
    assert [one["id"] for one in console.get(f"{RUN}/incidents")["incidents"]] == [opened.id, "0001-hung-collective"]
    story = console.get(f"{RUN}/incidents/{opened.id}")
    assert (story["kind"], story["kind_text"], story["culprits"]) == ("hung_collective", "hung collective", [2])
    edge = {"waiter": 0, "awaited": 2, "group": "dp", "seq": 21, "op": "gloo:all_reduce", "waiters": 0}
    assert story["waits"][0] == edge
    assert story["why"][0] == "ranks 0, 1, 3, 4, 5, 6, 7 wait for rank 2 in gloo:all_reduce 21 of dp"
    assert story["next"].startswith("Holdfast restarts the run if it can. ")
    assert story["runbook"].endswith("/docs/runbook.md#run-hung")
    sizes = {one["name"]: one["bytes"] for one in story["evidence"]}
    with console.request(f"{RUN}/incidents/{opened.id}/evidence/suspicion/node-node0000.system.txt") as answer:
        text = answer.read()
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["content-disposition"] is None
    assert len(text) == sizes["suspicion/node-node0000.system.txt"]
    with console.request(f"{RUN}/incidents/{opened.id}/evidence/incident.json?download=1") as answer:
        assert answer.headers["content-disposition"] == 'attachment; filename="incident.json"'
    with (
        console.request(f"{RUN}/incidents/{opened.id}/archive") as answer,
        tarfile.open(fileobj=io.BytesIO(answer.read())) as archive,
    ):
        assert f"{opened.id}/suspicion/node-node0000.system.txt" in archive.getnames()


def test_an_incident_without_files_here_has_its_story(console: SimulatedConsole) -> None:
    opened = console.on_loop(lambda: console.run.judge(2, store.VERDICT_KIND_DEAD_RANK))
    assert console.get(f"{RUN}/incidents/{opened.id}")["evidence"] == []
    with (
        console.request(f"{RUN}/incidents/{opened.id}/archive") as answer,
        tarfile.open(fileobj=io.BytesIO(answer.read())) as archive,
    ):
        assert sorted(archive.getnames()) == [f"{opened.id}/README.txt", f"{opened.id}/incident.json"]


def test_checkpoints_of_a_folder_and_their_release(console: SimulatedConsole, tmp_path: Path) -> None:
    keeping.keep(step_directory(tmp_path / "checkpoints", 10), "a loss spike")
    keeping.prove(step_directory(tmp_path / "checkpoints", 10), 11)
    (tmp_path / "checkpoints" / bad_loss_name(1)).write_bytes(BadLossRecord(from_step=5, reason="NaN").encode())
    found = console.get(f"{RUN}/checkpoints")
    (history,) = found["histories"]
    assert (found["note"], found["location"]) == ("", str(tmp_path / "checkpoints"))
    first, second = history["checkpoints"]
    assert (first["step"], first["form"], first["kept"], first["kept_for"]) == (10, "full", True, "a loss spike")
    assert (second["step"], second["kept"], second["verified"]) == (20, False, None)
    assert [(one["proven"], one["suspect"]) for one in (first, second)] == [(True, False), (False, True)]
    with console.request(f"{RUN}/actions/release", {"step": 10}) as answer:
        assert json.loads(answer.read())["done"] == "step 10 is released; it was kept for: a loss spike"
    assert not console.get(f"{RUN}/checkpoints")["histories"][0]["checkpoints"][0]["kept"]


def test_actions_reach_the_run(console: SimulatedConsole) -> None:
    def done(action: str, body: object) -> str:
        with console.request(f"{RUN}/actions/{action}", body) as answer:
            return str(json.loads(answer.read())["done"])

    assert done("checkpoint", {}) == "a checkpoint of step 11 is on its way"
    assert done("inject", {"kind": "kill", "rank": 3}) == "rank 3 has accepted kill"
    assert done("stop", {"grace_s": 30}) == "the run stops after a last checkpoint"
    assert console.get(RUN)["state"] == "stopped"


def test_curves_of_this_and_of_an_earlier_start(console: SimulatedConsole) -> None:
    assert console.get(f"{RUN}/curves?names=loss")["curves"]["loss"]["step"] == []
    (past,) = console.get("/api/past")["runs"]
    assert (past["run"], past["instance"], past["steps"], past["current"]) == ("llama-7b", "earlier", PAST_STEPS, False)
    curves = console.get(f"{RUN}/curves?names=loss,grad_norm&points=20&instance=earlier&since=100")["curves"]
    assert set(curves) == {"loss", "grad_norm"}
    assert len(curves["loss"]["step"]) == len(curves["loss"]["mean"]) <= 20
    assert curves["loss"]["step"][-1] == PAST_STEPS - 1
    assert console.get("/api/runs/of-another-day/curves")["curves"]["loss"]["step"] == []


def test_the_daemon_itself(console: SimulatedConsole) -> None:
    page = console.get("/api/holdfast")
    assert (page["daemon"], page["leader_of"], page["store"]["up"]) == ("simulated", ["llama-7b"], True)
    assert "hung_collective" in {one["name"] for one in page["detectors"]}
    assert page["agents"] == [{"node": "node0000", "run": "llama-7b", "reported_unix_s": console.run.now}]
    assert page["pages_open"] == 0


def test_a_run_that_the_daemon_cannot_see_is_not_called_dead_and_its_pages_say_that_they_may_be_old(
    console: SimulatedConsole,
) -> None:
    def stale() -> list[str]:
        return [console.get(path)["stale"] for path in (f"{RUN}/ranks", f"{RUN}/ranks/3")]

    assert stale() == ["", ""]
    console.on_loop(lambda: setattr(console.run, "store_up", False))
    frame = console.get(RUN)
    assert (frame["health"], frame["store_up"], frame["step"]) == ("unknown", False, 9)
    assert frame["state_text"].startswith("unknown since ")
    assert stale() == [frame["state_text"]] * 2
    console.on_loop(console.run.end)  # that is no more than is known already
    assert stale() == ["", ""]


@pytest.mark.usefixtures("each_state_is_looked_at")
def test_the_page_of_ranks_has_the_line_of_the_run_while_no_rank_is_heard_of(console: SimulatedConsole) -> None:
    change_state(console, nodes={})
    found = console.get(f"{RUN}/ranks")
    assert found["stale"] == console.get(RUN)["state_text"] != ""
    assert found["values"] == [None] * 8


def test_a_run_of_which_nothing_is_known_yet(console: SimulatedConsole) -> None:
    known = console.get(RUN)
    console.on_loop(lambda: setattr(console.run, "state", None))
    frame = console.get(RUN)
    assert (set(frame), frame["state"], frame["health"]) == (set(known), "unknown", "unknown")
    assert console.get("/api/runs")["runs"][0]["health"] == "unknown"


def test_static_files_are_those_of_the_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "static"
    (folder / "js").mkdir(parents=True)
    (folder / "index.html").write_text("<p>")
    (folder / "js" / "main.js").write_text("1")
    (folder / "linked.js").symlink_to(tmp_path / "secret.js")
    (tmp_path / "secret.js").write_text("secret")
    it = StaticFolder(folder)
    index, script = it.answer("", ""), it.answer("js/main.js", "")
    assert (index.headers["content-type"], index.headers["cache-control"]) == ("text/html; charset=utf-8", "no-cache")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert it.answer("js/main.js", script.headers["etag"]).status_code == 304
    for name in ("linked.js", "../secret.js", "js", "js/../index.html", "/etc/passwd"):
        with pytest.raises(RefusedRequestError):
            it.answer(name, "")
