"""A real run is reported to people: an incident, its recovery and the end, in this order and without any secret."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.reports.leader_watch import LEAST_PATIENCE_S
from holdfast_cli.control import ControlClient, rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.store import connect
from holdfast_cli.run_folder.record import load_record
from holdfast_proto import keys
from tests.chaos.conftest import PATIENCE_S, Runs, until, until_step
from tests.support.coroutines import wait_until
from tests.support.local_runs import resume_restart, suspend_restart, wait_for
from tests.support.receiver import Answer, receiver

pytestmark = pytest.mark.system

TOKEN = "the-token-that-nobody-sees"
RUN = "notified"
COMMAND = [sys.executable, "-m", "holdfast_cli", "run"]


def settings(folder: Path, runs: Runs, url: str, *, steps: int = 40) -> Path:
    """Write the file of a run whose only channel is a webhook."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    (folder / "heartbeat.url").write_text(f"{url}/ping/{TOKEN}\n")
    (folder / "heartbeat.url").chmod(0o600)
    trainer = ["python", "-m", "paced", "--config", str(runs.config), "--train.steps", str(steps)]
    file = folder / "holdfast.toml"
    file.write_text(f"""
[run]
name = "{RUN}"
command = {json.dumps(trainer)}
ranks = 4
directory = "runs"

[detection]
preset = "fast"

[snapshots]
every = 1

[notify]
min_interval_s = 0
heartbeat_url_file = "heartbeat.url"
heartbeat_every_s = 1

[notify.webhook]
url = "{url}/hook"
bearer_token_file = "token"
""")
    return file


def start(folder: Path, runs: Runs) -> "subprocess.Popen[str]":
    environment = {**os.environ, **runs.environment(RUN)}
    log = (folder / "output.txt").open("w")
    return subprocess.Popen(COMMAND, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)


def test_incident_recovery_and_end_arrive_in_this_order(runs: Runs, tmp_path: Path) -> None:
    runs.hurry_file(RUN).unlink(missing_ok=True)
    with receiver() as service:
        settings(tmp_path, runs, service.url)
        process = start(tmp_path, runs)
        try:
            record = wait_until(lambda: load_record(tmp_path / "runs" / RUN), "the run has a record")
            wait_until(Path(record.control).exists, "the daemon serves")
            control = ControlClient(Path(record.control), RUN)
            status = until(control, lambda seen: seen.newest_step >= 5)
            os.kill(rank_pids(status)[2], signal.SIGKILL)
            until(control, lambda seen: seen.restarts == 1 and seen.newest_step > status.newest_step)
            seen_in_ps = subprocess.run(["ps", "-ewwo", "args"], check=True, capture_output=True, text=True).stdout
            client = connect(record.store_url)
            spec = client.get(keys.spec(RUN))
            client.close()
            runs.hurry(RUN)
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "output.txt").read_text()
        finally:
            process.kill()
            process.wait()
        hooks = [one for one in service.received if one.path == "/hook"]
        pings = [one for one in service.received if one.path != "/hook"]
    notices = [notice for one in hooks for notice in one.json["notices"]]
    killed = [one for one in notices if one["kind"] == "dead_rank"]
    assert [one["status"] for one in killed] == ["open", "resolved"]
    assert killed[0]["key"] == killed[1]["key"]
    assert killed[0]["ranks"] == [2]
    assert "rank 2" in killed[0]["what"]
    assert notices.index(killed[1]) < len(notices) - 1
    assert notices[-1]["status"] == "finished"
    assert {one.headers["Authorization"] for one in hooks} == {f"Bearer {TOKEN}"}
    assert len(pings) > 1
    assert {one.path for one in pings} == {f"/ping/{TOKEN}"}  # no failure was reported
    assert TOKEN not in seen_in_ps
    assert isinstance(spec, bytes)
    assert b"heartbeat.url" in spec
    assert TOKEN.encode() not in spec
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name not in ("token", "heartbeat.url"):
            assert TOKEN.encode() not in path.read_bytes(), path


def test_a_dead_receiver_does_not_keep_the_command_from_ending(runs: Runs, tmp_path: Path) -> None:
    with receiver() as service:
        service.answers = [Answer(503)]
        settings(tmp_path, runs, service.url, steps=3)
        runs.hurry(RUN)
        process = start(tmp_path, runs)
        try:
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "output.txt").read_text()
        finally:
            process.kill()
            process.wait()
    log = (tmp_path / "runs" / RUN / "logs" / "daemon.log").read_text()
    assert "not all notifications were delivered within 5 s" in log
    assert service.notices()[-1]["status"] == "finished"


def looks_for_a_leader(local: LocalRun) -> int:
    """Return how often the agent has looked whether a daemon leads the run. Without a daemon, nothing else is read."""
    client = connect(local.store_url)
    try:
        counted: Any = client.info("commandstats")
    finally:
        client.close()
    return int(counted.get("cmdstat_get", {}).get("calls", 0))


def test_an_agent_reports_once_that_the_daemon_is_gone_and_the_next_daemon_pings_again(
    runs: Runs, tmp_path: Path
) -> None:
    with receiver() as alive, receiver() as failures:
        (tmp_path / "alive.url").write_text(f"{alive.url}/ping/{TOKEN}\n")
        (tmp_path / "failures.url").write_text(f"{failures.url}/gone/{TOKEN}\n")
        with runs.run(
            "unwatched",
            ranks=1,
            steps=100_000,
            flags=("--parallel.dp=1", "--parallel.pp=1"),
            notify_heartbeat_url_file=tmp_path / "alive.url",
            notify_heartbeat_fail_url_file=tmp_path / "failures.url",
            notify_heartbeat_every_s=1.0,
        ) as local:
            wait_until(lambda: alive.received, "the daemon has pinged")
            until_step(local, 1)
            suspend_restart(local, "daemon")
            local.stack.component("daemon").kill()
            killed_s = time.monotonic()
            pings = len(alive.received)
            # No earlier than the shortest patience of agents, and a second report would follow one look later.
            wait_for(lambda: failures.received, "the agent reports that no daemon leads the run")
            gone_s = time.monotonic() - killed_s
            first = failures.received[0]
            assert first.path == f"/gone/{TOKEN}"
            assert first.body.startswith(b"run unwatched: no daemon leads it, as node local has seen for ")
            assert b"ranks that train continue, but nobody judges them or restarts them" in first.body
            assert gone_s > LEAST_PATIENCE_S
            assert len(alive.received) <= pings + 1  # the daemon's last one may have been under way
            looks = looks_for_a_leader(local)
            wait_for(lambda: looks_for_a_leader(local) >= looks + 2, "the agent has looked twice more")
            resume_restart(local, "daemon")
            pings = len(alive.received)
            wait_until(lambda: len(alive.received) > pings, "the next daemon pings")
            assert len(failures.received) == 1
