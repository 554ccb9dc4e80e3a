"""Names that runs get when nobody names them: of runs that start at the same moment, each has its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_cli.commands import observe, run
from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder import paths
from holdfast_cli.run_folder.paths import claim_dated_name, prepare_directory
from holdfast_proto.exit_codes import ExitCode
from tests.cli.conftest import holdfast

NOW = "run-20260102-030405"

CLAIMS = f"""
import sys
from pathlib import Path
from holdfast_cli.run_folder import paths

paths.dated_name = lambda: "{NOW}"
print("ready", flush=True)
sys.stdin.readline()
print(paths.claim_dated_name(Path(sys.argv[1])))
"""


@pytest.fixture
def same_second(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (paths, run, observe):
        monkeypatch.setattr(module, "dated_name", lambda: NOW)


def test_several_that_start_at_once_get_a_name_each(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIMS, str(tmp_path / "runs")]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path) for _ in range(4)]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    names = sorted(process.communicate()[0].strip() for process in started)
    assert names == [NOW, f"{NOW}-2", f"{NOW}-3", f"{NOW}-4"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names


@pytest.mark.usefixtures("same_second")
@pytest.mark.parametrize("command", ["run", "observe"])
def test_a_second_command_of_the_same_second_is_not_refused(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def watch(options: LocalRunOptions, *_: object, **__: object) -> int:
        names.append(options.run)
        return 0

    monkeypatch.setattr(run, "_watch", watch)
    monkeypatch.setattr(observe, "_observe_here", watch)
    for _ in range(2):
        result = holdfast(command, "--directory", tmp_path / "runs", "--", sys.executable, "-c", "pass")
        assert result.exit_code == 0, result.output
    assert names == [NOW, f"{NOW}-2"]


@pytest.mark.usefixtures("same_second")
def test_a_command_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    refused = holdfast("run", "--directory", tmp_path / "runs", "--", "no-such-program")
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("place", ["file", "file/runs"])
def test_a_place_that_cannot_hold_runs_is_an_error_that_names_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=f"--directory {tmp_path / place}: .*: name a folder"):
        claim_dated_name(tmp_path / place)


@pytest.mark.parametrize(("share", "mode"), [(False, 0o700), (True, 0o2750)])
def test_a_claimed_folder_is_private_or_for_its_group(tmp_path: Path, *, share: bool, mode: int) -> None:
    name = claim_dated_name(tmp_path / "runs", share=share)
    directory = prepare_directory(tmp_path / "runs" / name)
    assert [path.stat().st_mode & 0o7777 for path in (directory, directory / "logs")] == [mode, mode]
