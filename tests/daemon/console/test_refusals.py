"""What the console refuses, and that each refusal is one line."""

import http.client
import json
import os
import socket
import urllib.error
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast_daemon.console.serving import request_guard
from holdfast_daemon.console.serving.request_guard import MOST_BODY_BYTES
from tests.support.console_server import SimulatedConsole

READ = [
    "/api/session", "/api/runs", "/api/stream", "/api/past", "/api/holdfast", "/api/runs/llama-7b",
    "/api/runs/llama-7b/stream", "/api/runs/llama-7b/curves", "/api/runs/llama-7b/ranks",
    "/api/runs/llama-7b/ranks/stream", "/api/runs/llama-7b/ranks/0", "/api/runs/llama-7b/ranks/0/log",
    "/api/runs/llama-7b/incidents", "/api/runs/llama-7b/incidents/0001-hung-collective",
    "/api/runs/llama-7b/incidents/0001-hung-collective/evidence/incident.json",
    "/api/runs/llama-7b/incidents/0001-hung-collective/archive", "/api/runs/llama-7b/checkpoints",
]  # fmt: skip
ACT = "/api/runs/llama-7b/actions/checkpoint"


def refusal(console: SimulatedConsole, path: str, body: object = None, **options: Any) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as raised:
        console.request(path, body, **options)
    answer = json.loads(raised.value.read())
    assert list(answer) == ["error"]
    assert "\n" not in answer["error"]
    assert_headers(raised.value.headers)
    return raised.value.code, answer["error"]


def posted(console: SimulatedConsole, path: str, data: Any, **options: Any) -> tuple[int, bytes]:
    """Post a body as it is; return the status and the answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", console.port)) as connection:
        connection.request("POST", path, data, **{"headers": {"Origin": console.origin}, **options})
        answer = connection.getresponse()
        return answer.status, answer.read()


def assert_headers(headers: Any) -> None:
    assert headers["content-security-policy"].startswith("default-src 'self'; script-src 'self'")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", READ)
def test_nothing_is_shown_without_a_token(console: SimulatedConsole, path: str) -> None:
    assert refusal(console, path, token="")[0] == 401
    assert refusal(console, path, token="x" * 43)[0] == 401
    assert refusal(console, path, token="", headers={"Cookie": f"holdfast_{console.port}=guess"})[0] == 401


@pytest.mark.parametrize("action", ["checkpoint", "stop", "release", "inject", "stacks"])
def test_only_an_operator_can_act(console: SimulatedConsole, action: str) -> None:
    path = f"/api/runs/llama-7b/actions/{action}"
    assert refusal(console, path, {}, token="")[0] == 401
    assert refusal(console, path, {}, token=console.viewer)[0] == 403
    assert console.get("/api/session", token=console.viewer)["role"] == "viewer"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "0.0.0.0"])
def test_a_name_that_is_not_ours_is_refused(console: SimulatedConsole, host: str) -> None:
    assert refusal(console, "/api/runs", headers={"Host": host})[0] == 403
    assert refusal(console, "/", headers={"Host": host})[0] == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:99", "LOCALHOST:80"])
def test_local_names_are_ours(console: SimulatedConsole, host: str) -> None:
    assert console.get("/api/session", headers={"Host": host})["role"] == "operator"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://localhost:1", "http://["])
def test_another_site_can_neither_act_nor_read(console: SimulatedConsole, origin: str) -> None:
    assert refusal(console, ACT, {}, headers={"Origin": origin})[0] == 403
    assert refusal(console, "/api/runs", headers={"Origin": origin})[0] == 403
    assert refusal(console, "/api/login", {"token": console.operator}, headers={"Origin": origin})[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "localhost:8000", "[::1]:8000"])
def test_the_scheme_of_an_origin_is_that_of_the_console(console: SimulatedConsole, host: str) -> None:
    named = host.format(port=console.port)
    for scheme in ("https", "ws", "chrome-extension"):
        status, line = refusal(console, ACT, {}, headers={"Host": named, "Origin": f"{scheme}://{named}"})
        assert status == 403
        assert f"--console-host {scheme}://" in line
    # An SSH tunnel may end at another port of this machine: the page then comes from there.
    with console.request(ACT, {}, headers={"Host": named, "Origin": f"http://{named}"}) as answer:
        assert "a checkpoint of step" in json.loads(answer.read())["done"]


def test_an_action_without_origin_is_refused(console: SimulatedConsole) -> None:
    assert posted(console, ACT, "{}", headers={"Authorization": f"Bearer {console.operator}"})[0] == 403


def test_a_large_body_is_refused_also_if_its_length_is_not_said(console: SimulatedConsole) -> None:
    assert refusal(console, "/api/login", {"token": "x" * MOST_BODY_BYTES})[0] == 400
    status, line = posted(console, "/api/login", (b" " * 4096 for _ in range(8)), encode_chunked=True)
    assert status == 400
    assert b"the body is larger than" in line


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/other", 404),
        ("/api/runs/..%2f..%2fetc", 404),
        ("/api/runs/%2e%2e", 404),
        ("/api/nothing", 404),
        ("/api/runs/llama-7b/ranks/99", 404),
        ("/api/runs/llama-7b/ranks/-1", 404),
        ("/api/runs/llama-7b/ranks/99999999999999999999", 404),
        ("/api/runs/llama-7b/ranks?colour=taste", 400),
        ("/api/runs/llama-7b/ranks?search=9-3", 400),
        ("/api/runs/llama-7b/ranks?page=0", 400),
        ("/api/runs/llama-7b/ranks/stream?colour=taste", 400),
        ("/api/runs/llama-7b/ranks/0/log?bytes=many", 400),
        ("/api/runs/llama-7b/curves?names=loss,taste", 400),
        ("/api/runs/llama-7b/curves?points=0", 400),
        ("/api/runs/llama-7b/curves?points=99999999", 400),
        ("/api/runs/..%2fx/curves", 404),
        ("/api/runs/.hidden/curves", 400),
        ("/api/runs/llama-7b/incidents/0009-x", 404),
        ("/api/runs/llama-7b/incidents/..", 404),
        ("/api/runs/llama-7b/incidents/0001-hung-collective/evidence/..%2f..%2f..%2fconsole-tokens.json", 404),
        ("/api/runs/llama-7b/incidents/0001-hung-collective/evidence/%2fetc%2fpasswd", 404),
        ("/api/runs/llama-7b/incidents/0001-hung-collective/evidence/suspicion", 404),
        ("/api/runs/llama-7b/incidents/0001-hung-collective/evidence/a%00b", 404),
        ("/..%2fapp.py", 404),
        ("/%2e%2e/app.py", 404),
        ("/console-tokens.json", 404),
    ],
)
def test_paths_and_parameters_that_make_no_sense(console: SimulatedConsole, path: str, status: int) -> None:
    assert refusal(console, path)[0] == status


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("dance", {}, 404),
        ("stop", {"grace_s": -1}, 400),
        ("stop", {"grace_s": "soon"}, 400),
        ("stop", {"now": True}, 400),
        ("stop", [1], 400),
        ("checkpoint", {"step": 3}, 400),
        ("release", {}, 400),
        ("release", {"step": 1.5}, 400),
        ("release", {"step": 77}, 404),
        ("release", {"step": 10}, 409),
        ("stacks", {}, 400),
        ("stacks", {"rank": -1}, 400),
        ("stacks", {"rank": "0"}, 400),
        ("stacks", {"rank": 0, "native": True}, 400),
        ("inject", {}, 400),
        ("inject", {"kind": "kill"}, 400),
        ("inject", {"kind": "kill", "rank": -1}, 400),
        ("inject", {"kind": "kill", "rank": 1, "phase": "lunch"}, 400),
        ("inject", {"kind": "kill", "rank": 1, "factor": 1e9}, 400),
    ],
)
def test_actions_that_make_no_sense(console: SimulatedConsole, action: str, body: object, status: int) -> None:
    assert refusal(console, f"/api/runs/llama-7b/actions/{action}", body)[0] == status


def test_a_body_that_is_no_json_is_refused(console: SimulatedConsole) -> None:
    for data in (b"{", b"\xff\xfe", b"[" * 10_000):
        assert posted(console, "/api/login", data)[0] == 400


def test_actions_say_why_they_cannot_be_done(console: SimulatedConsole) -> None:
    def change(name: str, value: object) -> None:
        console.on_loop(lambda: setattr(console.run, name, value))

    change("leads", False)
    assert refusal(console, ACT, {}) == (409, "another daemon leads the run: use its console")
    change("store_up", False)
    status, line = refusal(console, ACT, {})
    assert status == 409
    assert "store is unreachable" in line
    change("store_up", True)
    change("leads", True)
    console.on_loop(console.run.end)
    assert refusal(console, ACT, {}) == (409, "the run has ended")


def test_many_wrong_tokens_get_another_answer_and_the_right_one_works(console: SimulatedConsole) -> None:
    lines = {refusal(console, "/api/login", {"token": "x" * 43}, token="")[1] for _ in range(12)}
    assert "too many wrong tokens: wait a minute" in lines
    with console.request("/api/login", {"token": console.viewer}, token="") as answer:
        assert json.loads(answer.read()) == {"role": "viewer"}


def test_links_in_evidence_and_logs_are_not_followed(console: SimulatedConsole, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = tmp_path / "incidents" / "llama-7b" / "0001-hung-collective"
    (folder / "linked.txt").symlink_to(secret)
    os.mkfifo(folder / "pipe.txt")
    base = "/api/runs/llama-7b/incidents/0001-hung-collective"
    assert refusal(console, f"{base}/evidence/linked.txt")[0] == 404
    assert refusal(console, f"{base}/evidence/pipe.txt")[0] == 404
    names = {one["name"] for one in console.get(base)["evidence"]}
    assert "rank-00000.stack.txt" in names
    assert not names & {"linked.txt", "pipe.txt"}
    log = tmp_path / "logs" / "generation-0001" / "rank-00001.log"
    log.unlink()
    log.symlink_to(secret)
    answer = console.get("/api/runs/llama-7b/ranks/1/log")
    assert answer["text"] == ""
    assert "holdfast logs --rank 1" in answer["note"]


def test_a_folder_of_logs_that_is_a_link_is_not_followed(console: SimulatedConsole, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "generation-0001"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    answer = console.get("/api/runs/llama-7b/ranks/1/log")
    assert answer["text"] == ""
    assert "a link is in its path" in answer["note"]


def test_the_secrets_are_in_no_archive_and_no_log(console: SimulatedConsole, caplog: pytest.LogCaptureFixture) -> None:
    with console.request("/api/runs/llama-7b/incidents/0001-hung-collective/archive") as answer:
        assert console.operator.encode() not in answer.read()
    assert console.operator not in caplog.text


def test_requests_without_a_body_keep_nobody_out(console: SimulatedConsole, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as entered:
        for _ in range(100):
            held = entered.enter_context(closing(socket.create_connection(("127.0.0.1", console.port), timeout=30)))
            head = ["POST /api/login HTTP/1.1", f"Host: 127.0.0.1:{console.port}", f"Origin: {console.origin}"]
            with suppress(OSError):  # it may be refused, or make room for the next one
                held.sendall("\r\n".join([*head, "Content-Length: 9", "Expect: 100-continue", "", ""]).encode())
                held.recv(100)  # the console waits for the body now
        for _ in range(20):
            console.request("/api/session").close()
    assert "the console failed" not in caplog.text


def test_a_body_that_does_not_come_keeps_no_connection(
    console: SimulatedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_guard, "BODY_PATIENCE_S", 0.2)
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=30)
    connection.putrequest("POST", "/api/login")
    connection.putheader("Origin", f"http://127.0.0.1:{console.port}")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())) == (408, {"error": "the body did not come within 0.2 s"})
    assert answer.getheader("connection") == "close"
    connection.close()
