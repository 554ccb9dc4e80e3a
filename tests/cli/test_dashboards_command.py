import contextlib
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from holdfast_cli.commands.services.dashboards import PARTS
from holdfast_cli.run_folder.scrape_targets import TARGETS_FOLDER
from tests.support.programs import package
from tests.support.prometheus_server import configured_prometheus, needs_prometheus

REPOSITORY = Path(__file__).resolve().parents[2]
UIDS = {"runs", "run", "ranks", "nodes", "training", "checkpoints", "itself"}


def export(*arguments: str, cwd: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast_cli", "dashboards", "export", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


def assert_complete(folder: Path) -> None:
    assert {path.stem for path in (folder / "grafana/json").iterdir()} == {f"holdfast-{uid}" for uid in UIDS}
    assert json.loads((folder / "grafana/json/holdfast-run.json").read_text())["uid"] == "holdfast-run"
    provider = yaml.safe_load((folder / "grafana/provisioning/dashboards/holdfast.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == str(folder / "grafana/json")
    others = ["grafana/provisioning/datasources/holdfast.yml", "prometheus/rules/holdfast.yml"]
    others += ["prometheus/prometheus-kubernetes.yml", "alertmanager/alertmanager.yml"]
    assert [name for name in others if not (folder / name).is_file()] == []


def patterns(folder: Path) -> list[str]:
    """Return where Prometheus looks for files of targets."""
    config = yaml.safe_load((folder / "prometheus/prometheus.yml").read_text())
    return list(config["scrape_configs"][0]["file_sd_configs"][0]["files"])


def test_the_files_are_written_with_the_paths_that_hold_here(tmp_path: Path) -> None:
    ended = export("--directory", "it's here", cwd=tmp_path)
    folder = tmp_path / "holdfast-dashboards"
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0] == f"{3 + len(UIDS) + 3} files are in {folder}"
    assert str(folder / "grafana/provisioning") in ended.stdout
    assert_complete(folder)
    assert patterns(folder) == [str(tmp_path / "it's here/.prometheus/*.json"), "targets/*.json"]


@needs_prometheus
def test_prometheus_takes_what_was_written(tmp_path: Path) -> None:
    assert export("here", cwd=tmp_path).returncode == 0
    command = ["promtool", "check", "config", str(tmp_path / "here/prometheus/prometheus.yml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *(((name,), "FOLDER ") for name in ("", "a[1]", "a*", "a?", "a\\b", "a\nb")),
        (("here", "--directory", "a*"), "--directory "),
    ],
)
def test_a_folder_in_which_prometheus_finds_nothing_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    ended = export(*arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith(f"holdfast: {named}")
    assert list(tmp_path.iterdir()) == []


@needs_prometheus
def test_prometheus_finds_runs_in_a_folder_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    odd = tmp_path / "lab [1]?b\\c"
    (odd / TARGETS_FOLDER).mkdir(parents=True)
    (odd / TARGETS_FOLDER / "odd.json").write_text('[{"targets": ["127.0.0.1:1"], "labels": {"run": "odd"}}]')
    assert export("here", "--directory", str(odd), cwd=tmp_path).returncode == 0
    config = yaml.safe_load((tmp_path / "here/prometheus/prometheus.yml").read_text())
    with configured_prometheus(tmp_path, config) as prometheus:
        assert prometheus.queries_without_data([("up", 'up{run="odd"}')]) == []


def test_a_file_that_exists_is_replaced_only_with_force(tmp_path: Path) -> None:
    own = tmp_path / "here/prometheus/prometheus.yml"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    ended = export("here", cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == f"holdfast: {own} exists: name another folder, or replace it with --force\n"
    assert own.read_text() == "mine"
    assert list((tmp_path / "here").iterdir()) == [own.parent]
    assert export("here", "--force", cwd=tmp_path).returncode == 0
    assert_complete(tmp_path / "here")
    assert own.read_text() != "mine"


def test_receivers_that_a_user_has_added_stay(tmp_path: Path) -> None:
    assert export("here", cwd=tmp_path).returncode == 0
    own = tmp_path / "here/alertmanager/alertmanager.yml"
    own.write_text("mine")
    ended = export("here", "--force", cwd=tmp_path)
    assert ended.returncode == 0
    assert f"{own} has changed since it was written, and is left as it is" in ended.stdout
    assert own.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = export("file/here", cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"holdfast: {tmp_path / 'file'}")
    assert ended.stderr.endswith(": name a folder that you can write to\n") and ended.stderr.count("\n") == 1


def test_the_wheel_gets_what_the_command_needs() -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {f"dashboards/{part}": f"holdfast_cli/_dashboards/{part}" for part in PARTS}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    with contextlib.chdir(REPOSITORY):
        return folder / str(package("hatchling.build").build_wheel(str(folder)))


def test_the_command_works_from_a_built_wheel(tmp_path: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    ended = export("here", cwd=tmp_path, environment=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert_complete(tmp_path / "here")
    assert export("repository", cwd=tmp_path).returncode == 0
    for name in ("alertmanager/alertmanager.yml", "prometheus/rules/holdfast.yml", "grafana/json/holdfast-runs.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "repository" / name).read_bytes()


def test_a_wheel_holds_the_console_and_the_licences_of_its_libraries(wheel: Path) -> None:
    static = REPOSITORY / "daemon" / "holdfast_daemon" / "console" / "static"
    paths = [path.relative_to(static) for path in static.rglob("*") if path.is_file()]
    with zipfile.ZipFile(wheel) as archive:
        assert {f"holdfast_daemon/console/static/{path}" for path in paths} <= set(archive.namelist())
    assert sum(path.name == "LICENSE" for path in paths) == 3
