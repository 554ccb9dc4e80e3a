import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.catalogue_exporter import RUN, catalogue_exporter
from tests.support.coroutines import wait_until
from tests.support.programs import ALERTMANAGER, needs
from tests.support.prometheus_server import Prometheus, needs_prometheus

REPOSITORY = Path(__file__).resolve().parents[2]
WATCH = (sys.executable, str(REPOSITORY / "dashboards" / "watch.py"))
COMMAND = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(9))
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
sys.exit(3)
"""
"""Stands for `holdfast run`: it says that it has begun, and ends with 3, or after SIGINT with 9."""

needs_alertmanager = needs(ALERTMANAGER)


def test_without_the_programs_one_line_names_the_packages(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    ended = subprocess.run(WATCH, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "watch needs programs that are not installed: apt-get install prometheus prometheus-alertmanager\n"
    )


def test_a_folder_that_prometheus_takes_for_a_pattern_is_refused(tmp_path: Path) -> None:
    for program in ("prometheus", "prometheus-alertmanager"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    ended = subprocess.run(
        (*WATCH, "--directory", str(tmp_path / "runs [1]"), "true"),
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"watch: Prometheus reads the path {tmp_path / 'runs [1]'} as a pattern, and would find nothing there: use a "
        "folder without any of [ * ? \\ in its path, and name that of the runs with --directory\n"
    )
    assert not (tmp_path / "runs [1]").exists()


class Watched:
    """A watch that has printed its addresses."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stdout is not None
        self.process, self._folder = process, folder
        lines = [process.stdout.readline() for _ in range(3)]
        self.prometheus = lines[0].split()[1].removesuffix("/targets,")
        self.alertmanager = lines[1].split()[1]
        wait_until((folder / "begun").exists, "the command has begun")

    def finish(self) -> None:
        (self._folder / "done").touch()

    def assert_nothing_is_left(self) -> None:
        for url in (self.prometheus, self.alertmanager):
            with pytest.raises(OSError):
                urllib.request.urlopen(url, timeout=5)
        assert list((self._folder / "tmp").iterdir()) == []


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    (folder / "tmp").mkdir()
    command = [sys.executable, "-c", COMMAND, str(folder / "begun"), str(folder / "done")]
    words = [*WATCH, "--directory", str(folder / "runs"), *command]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    # A test run under nohup ignores SIGHUP, and its children inherit that: `env` gives the watch the default again.
    words = ["env", "--default-signal=HUP", *words]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Watched(process, folder)
        finally:
            process.kill()  # nothing if it has ended


def alerts_at(url: str) -> set[str]:
    """Return the names of the alerts that Alertmanager has received."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=10) as response:
        alerts: list[Any] = json.load(response)
    return {alert["labels"]["alertname"] for alert in alerts}


@needs_prometheus
@needs_alertmanager
def test_runs_are_scraped_and_alert_until_the_command_ends(tmp_path: Path) -> None:
    targets = tmp_path / "runs" / ".prometheus" / "demo.json"
    targets.parent.mkdir(parents=True)
    with catalogue_exporter("agent") as agent, watched(tmp_path) as watch:
        targets.write_text(json.dumps([{"targets": [agent], "labels": {"component": "agent", "run": RUN}}]))
        prometheus = Prometheus(watch.prometheus)
        assert prometheus.queries_without_data([("up", f'up{{run="{RUN}"}} == 1')], deadline_s=60) == []
        wait_until(lambda: "HoldfastWatchdog" in alerts_at(watch.alertmanager), "an alert has arrived")
        watch.finish()
        assert watch.process.wait(60) == 3
        watch.assert_nothing_is_left()


@needs_prometheus
@needs_alertmanager
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_both_servers(tmp_path: Path, number: signal.Signals) -> None:
    with watched(tmp_path) as watch:
        watch.process.send_signal(number)
        assert watch.process.wait(60) == 130
        watch.assert_nothing_is_left()
        assert not (tmp_path / "done").exists()


@needs_prometheus
@needs_alertmanager
def test_a_killed_watch_leaves_no_server_and_the_next_one_removes_its_folder(tmp_path: Path) -> None:
    def is_down(url: str) -> bool:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            return True
        return False

    with watched(tmp_path) as watch:
        watch.process.kill()
        watch.process.wait(60)
        wait_until(lambda: is_down(watch.prometheus) and is_down(watch.alertmanager), "both servers have ended")
        assert len(list((tmp_path / "tmp").iterdir())) == 1

    def is_removed() -> bool:
        words = [*WATCH, "--directory", str(tmp_path / "runs"), "true"]
        environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, timeout=60, check=True)
        return list((tmp_path / "tmp").iterdir()) == []

    wait_until(is_removed, "the command of the killed watch has ended, and its folder is removed")
