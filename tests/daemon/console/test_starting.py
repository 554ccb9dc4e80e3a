"""A daemon starts whether or not its console can."""

import dataclasses
import json
import logging
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast_daemon.clock import Clock
from holdfast_daemon.console import starting
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_proto import run_files
from holdfast_proto.endpoint import read_endpoint
from tests.support.console_server import simulated_console
from tests.support.daemons import daemon_process
from tests.support.shells import options
from tests.support.store_server import StoreServer


def watched(tmp_path: Path, **settings: Any) -> WatchedDaemon:
    given = dataclasses.replace(options(tmp_path, "unix:///none"), **settings)
    return cast(WatchedDaemon, SimpleNamespace(options=given, runs={}, loop=None, clock=Clock(), ended=False))


def test_without_the_packages_one_line_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(starting, "find_spec", lambda name: None if name == "uvicorn" else find_spec(name))
    assert starting.start_console(watched(tmp_path)) is None
    assert [record.getMessage() for record in caplog.records] == [
        "no console: `pip install 'holdfast-torch[console]'` brings the packages that it needs"
    ]
    assert not (tmp_path / "console-tokens.json").exists()


def test_only_the_console_itself_imports_its_packages() -> None:
    code = (
        "import sys; sys.modules.update(starlette=None, uvicorn=None, anyio=None)\n"
        "import holdfast_daemon.main, holdfast_cli.main, holdfast_daemon.console.starting"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_port_in_use_costs_the_console_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    with simulated_console(tmp_path / "a", with_files=False) as other:
        assert starting.start_console(watched(tmp_path, console_port=other.port)) is None
    assert "choose another --console-port" in caplog.text


def test_tokens_that_others_can_read_cost_the_console_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "console-tokens.json").write_text("{}")
    (tmp_path / "console-tokens.json").chmod(0o644)
    with caplog.at_level(logging.ERROR):
        assert starting.start_console(watched(tmp_path)) is None
    assert "is open to others" in caplog.text


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert starting.start_console(watched(tmp_path, console=False)) is None
    assert not (tmp_path / "console-tokens.json").exists()


def test_a_daemon_process_serves_a_console_and_keeps_its_tokens(store_server: StoreServer, folder: Path) -> None:
    tokens = []
    for _ in range(2):
        with daemon_process(folder, store_server) as it:
            endpoint = read_endpoint(run_files.daemon_endpoint(it.control))
            assert endpoint is not None
            assert endpoint.console_port
            tokens.append(json.loads(Path(endpoint.console_tokens).read_text()))
            url = f"http://127.0.0.1:{endpoint.console_port}/api/holdfast"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {tokens[-1]['viewer']}"})
            with urllib.request.urlopen(request) as answer:
                assert json.loads(answer.read())["store"]["up"] is True
            assert tokens[-1]["operator"] not in it.log
            assert tokens[-1]["operator"].encode() not in Path(f"/proc/{it.process.pid}/cmdline").read_bytes()
            it.process.terminate()
            assert it.process.wait(20) == 0
    assert tokens[0] == tokens[1]


def test_a_console_that_starts_again_has_the_same_port_unless_somebody_took_it(tmp_path: Path) -> None:
    def started() -> starting.RunningConsole:
        server = starting.start_console(watched(tmp_path))
        assert server is not None
        return server

    first = started()
    first.close()
    again, beside = started(), started()
    assert again.port == first.port != beside.port
    again.close()
    beside.close()
