"""The console of a real run: `holdfast run` prints its address, and a client with it sees the run and acts on it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chaos.conftest import PATIENCE_S, Runs
from tests.support.coroutines import wait_until

pytestmark = pytest.mark.system


class Browser:
    """A client that logs in with the printed address, as the page does."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self.port = parts.netloc, parts.port or 0
        self._headers = {"Origin": f"http://{parts.netloc}"}
        answer, _ = self._ask("POST", "/api/login", {"token": parts.fragment.removeprefix("token=")})
        self._headers["Cookie"] = str(answer.headers["set-cookie"]).partition(";")[0]

    def get(self, path: str) -> Any:
        return self._ask("GET", path)[1]

    def post(self, path: str, body: object) -> Any:
        return self._ask("POST", path, body)[1]

    def _ask(self, method: str, path: str, body: object = None) -> tuple[http.client.HTTPResponse, Any]:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        assert answer.status == 200, found
        return answer, found


def test_a_client_sees_the_steps_of_a_run_and_takes_a_checkpoint(runs: Runs, tmp_path: Path) -> None:
    flags = ["--parallel.dp", "1", "--parallel.pp", "1", "--train.steps", "100000"]
    trainer = ["python", "-m", "holdfast_trainer", "--config", str(runs.config), *flags]
    name = f"console-{runs.mark[:8]}"
    command = [sys.executable, "-m", "holdfast_cli", "run", "--run", name, "--checkpoint-every", "0", "--", *trainer]
    environment = {**os.environ, "HOLDFAST_TEST_MARK": runs.mark}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(found for line in lines if (found := re.match(r"console: (http://127\.0\.0\.1:\S+)", line)))
        assert "token" not in address[1]  # this output is no terminal
        printed = subprocess.run(
            [sys.executable, "-m", "holdfast_cli", "console", "--run", name],
            cwd=tmp_path, check=True, capture_output=True, text=True,
        )  # fmt: skip
        opened = printed.stdout.splitlines()[0].removeprefix("console: ")
        assert opened.startswith(f"{address[1]}#token=")
        browser = Browser(opened)
        assert next(lines).startswith(
            f"from another machine, first: ssh -N -L {browser.port}:127.0.0.1:{browser.port} "
        )

        path = f"/api/runs/{name}"
        # The number of steps that the loop has comes with a rank's report, which may be later than its first steps.
        known = ("running", 100_000)
        first = wait_until(
            lambda: frame if ((frame := browser.get(path))["state"], frame["steps_until"]) == known else None,
            "it trains",
        )
        wait_until(lambda: browser.get(path)["step"] >= 2, "steps end")
        wait_until(lambda: browser.get(path)["step"] > first["step"], "the step grows")
        assert browser.get(f"{path}/ranks")["count"] == 1
        done = browser.post(f"{path}/actions/checkpoint", {})["done"]
        step = int(re.search(r"step (\d+)", done)[1])  # type: ignore[index]
        wait_until(lambda: browser.get(path)["newest_checkpoint"] >= step, "the checkpoint is committed")
        (history,) = browser.get(f"{path}/checkpoints")["histories"]
        assert step in [one["step"] for one in history["checkpoints"]]
        wait_until(lambda: browser.get(f"{path}/curves?names=loss")["curves"]["loss"]["step"], "the history has steps")
        assert browser.get(f"{path}/ranks/0/log")["path"].endswith("rank-00000.log")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert not runs.processes()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", browser.port, timeout=5).connect()
