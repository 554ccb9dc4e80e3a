"""``holdfast report``: what is in the file, from which folders it is made, and what is missing is named."""

import json
import re
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast_cli.main import app
from holdfast_cli.reports.charts import POINTS
from holdfast_daemon.history.rows import CountedStep
from holdfast_proto import run_files
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RunStatus
from tests.cli.conftest import run_record
from tests.support.histories import BEGUN_UNIX_S, counted
from tests.support.report_runs import HOSTILE, TIME_USE_S, healthy_steps, hostile_incident, write_run


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own: reports are written to the current one."""
    monkeypatch.chdir(tmp_path)


def report(*arguments: str) -> str:
    """Return the text of the report."""
    result = CliRunner().invoke(app, ["report", *arguments, "--output", "report.html"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Path("report.html").read_text()


def page_of(folder: Path, steps: Sequence[CountedStep], *flags: str, **run: Any) -> str:
    """Return the text of the report on a run with these steps."""
    return report("r", "--directory", str(write_run(folder / "daemon", steps, **run)), *flags)


def data_of(page: str) -> dict[str, Any]:
    """Return the data of the charts, as a browser would read it."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_report_has_curves_time_incidents_checkpoints_and_settings(tmp_path: Path) -> None:
    more = {"time_use_s": TIME_USE_S, "versions": {"torch": "2.13.0"}}
    page = page_of(tmp_path, healthy_steps(50), incidents=[hostile_incident()], **more)
    data = data_of(page)
    titles = ["Loss", "Gradient norm", "Throughput (tokens/s)", "Step time (s)"]
    assert [chart["title"] for chart in data["charts"]] == titles
    assert data["charts"][0]["curves"][0]["step"] == list(range(50))
    assert data["marks"] == [{"step": 12, "label": "1"}]
    for expected in ("80.0%", "checkpoint stall", "finished", "2.13.0", "train.py --lr 1e-3", "With 1 incident."):
        assert expected in page


def test_every_hostile_text_is_escaped(tmp_path: Path) -> None:
    page = page_of(tmp_path, healthy_steps(20), incidents=[hostile_incident()], outcome=HOSTILE)
    assert [text for text in (HOSTILE, "<img", "verysecret") if text in page] == []
    assert page.count("<script") == 2 and "&lt;script&gt;" in page


def test_a_report_needs_no_other_file_and_allows_no_host(tmp_path: Path) -> None:
    page = page_of(tmp_path, healthy_steps(20))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    without_comment = page.replace("https://github.com/leeoniya/uPlot", "")
    assert re.findall(r"""(?:src|href)=["'][^"']*|https?://[^\s"']+""", without_comment) == []


def test_hosts_and_folders_are_hidden_on_request(tmp_path: Path) -> None:
    place = "/data/team/checkpoints"
    page = page_of(tmp_path, healthy_steps(20), incidents=[hostile_incident()], checkpoint_directory=place)
    assert "gpu-node-17" in page
    page = report("r", "--directory", "daemon", "--redact-hosts")
    for hidden in ("gpu-node-17", "/home/somebody", "/data/team"):
        assert hidden not in page
    assert "[folder]/checkpoints" in page


def test_arguments_are_hidden_unless_asked_for(tmp_path: Path) -> None:
    command = ["python", "train.py", "--who", "alice", "--token", "abc"]
    assert "--who [hidden] --token [hidden]" in page_of(tmp_path, healthy_steps(20), command=command)
    assert "--who alice --token [hidden]" in report("r", "--directory", "daemon", "--show-arguments")


@pytest.mark.parametrize(("words", "is_ours"), [(("-m", "holdfast_trainer"), True), (("train.py",), False)])
def test_a_run_of_our_trainer_names_the_command_that_shows_its_plan(
    words: tuple[str, ...], is_ours: bool, tmp_path: Path
) -> None:
    page = page_of(tmp_path, healthy_steps(20), command=["python", *words])
    assert ("holdfast plan compare r" in page) == is_ours


def test_receivers_of_messages_are_never_shown(tmp_path: Path) -> None:
    command = store.CommandChannel(argv=["page", "--token", "SECRET-1", "https://u:p@x.example/SECRET-2", "SECRET-3"])
    mail = store.EmailChannel(host="smtp.example", user="SECRET-4", sender="a@example", to=["SECRET-5@example"])
    channels = [
        store.NotifyChannel(
            name="hook", webhook=store.WebhookChannel(url="http://hooks.example/SECRET-6?key=SECRET-7")
        ),
        store.NotifyChannel(name="program", command=command),
        store.NotifyChannel(name="mail", email=mail),
    ]
    notify = store.Notify(on=["incident", "end"], channels=channels, heartbeat=store.Heartbeat(url_file="/SECRET-8"))
    folder = write_run(tmp_path / "daemon", healthy_steps(20), notify=notify)
    page = report("r", "--directory", str(folder), "--show-arguments")
    assert "SECRET" not in page and "webhook, command, email, on incident, end; a heartbeat" in page
    other = write_run(tmp_path / "other", healthy_steps(20))
    arguments = ["compare", str(folder), str(other), "--show-arguments"]
    for flags in ([], ["--json"]):
        compared = CliRunner().invoke(app, [*arguments, *flags], catch_exceptions=False)
        assert "SECRET" not in compared.output and "webhook, command" in compared.output


def test_a_long_run_has_no_more_points_than_pixels(tmp_path: Path) -> None:
    page = page_of(tmp_path, healthy_steps(5000))
    assert 500 < len(data_of(page)["charts"][0]["curves"][0]["step"]) <= POINTS


def test_a_loss_that_is_not_finite_is_marked(tmp_path: Path) -> None:
    steps = [*healthy_steps(10), counted(10, nonfinite=("loss",))]
    page = page_of(tmp_path, steps)
    assert data_of(page)["charts"][0]["curves"][0]["nonfinite"] == [10]
    assert "First not finite at step 10." in page


def test_a_run_that_ended_with_a_bad_loss_does_not_look_good(tmp_path: Path) -> None:
    steps = [*healthy_steps(10), *(counted(step, nonfinite=("loss",), step_s=0.5) for step in range(10, 40))]
    page = page_of(tmp_path, steps, nonfinite_since=10)
    assert '<span class="state bad">finished</span>' in page
    assert "The loss was not finite at the end, and since step 10." in page
    assert "<dt>loss, mean of 20 steps</dt><dd>not finite</dd>" in page


def test_a_run_whose_loss_is_finite_again_looks_good(tmp_path: Path) -> None:
    steps = [*healthy_steps(10), counted(10, nonfinite=("loss",)), *healthy_steps(60)[11:]]
    page = page_of(tmp_path, steps)
    assert '<span class="state good">finished</span>' in page
    assert "not finite at the end" not in page


def test_the_folder_of_a_local_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    folder = write_run(tmp_path / "runs" / "r", healthy_steps(20))
    run_record(folder, run="r", created_unix_s=BEGUN_UNIX_S, outcome="failed: rank 1 died").save()
    status = RunStatus(run="r", phase=store.RUN_PHASE_FAILED, outcome="rank 1 died", now_unix_s=BEGUN_UNIX_S + 60)
    (folder / "last-status.pb").write_bytes(status.SerializeToString())
    for arguments in (["r", "--directory", "runs"], [str(folder)], ["--directory", "runs"]):
        page = report(*arguments)
        assert '<span class="state bad">failed</span>rank 1 died' in page
        assert "1 min 0 s" in page


def test_a_run_that_has_not_ended_is_not_called_alive_without_its_daemon(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "daemon", healthy_steps(20))
    connection = sqlite3.connect(run_files.history(folder, "r"))
    connection.execute("UPDATE finals SET status = json_set(status, '$.phase', 'running', '$.outcome', '')")
    connection.commit()
    connection.close()
    shown = '<span class="state good">running</span>It had not ended when it was last seen.'
    assert shown in report("r", "--directory", str(folder))


def test_a_report_without_history_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    run_record(tmp_path / "runs" / "r", run="r", outcome="stopped").save()
    page = report("r", "--directory", "runs")
    for text in ("There are no curves: no history", "The state of the run is not known", "There were no incidents."):
        assert text in page
    assert data_of(page)["charts"] == []


@pytest.mark.parametrize("begin", [0, 8192])
def test_a_damaged_history_is_named_in_the_report(tmp_path: Path, begin: int) -> None:
    folder = write_run(tmp_path / "daemon", healthy_steps(2000))
    path = run_files.history(folder, "r")
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * (path.stat().st_size - begin))
    page = report("r", "--directory", str(folder))
    assert "cannot be read" in page
    assert data_of(page)["charts"] == []


def test_the_file_belongs_to_its_user_and_has_the_name_of_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "daemon", healthy_steps(20))
    result = CliRunner().invoke(app, ["report", "r", "--directory", str(folder)], catch_exceptions=False)
    assert result.output.startswith("r-report.html: ")
    assert stat.S_IMODE(Path("r-report.html").stat().st_mode) == 0o600


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "daemon", healthy_steps(3))
    arguments = ["report", "r", "--directory", "daemon", "--output", "no/folder/x.html"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (result.exit_code, len(result.output.splitlines())) == (ExitCode.FAILED, 1)
    assert "--output no/folder/x.html: " in result.output
