"""Names by which browsers may call the console: a flag that can be repeated, or a list in the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.local_run.command_lines import daemon_command
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.paths import RunPaths
from tests.cli.conftest import holdfast

Options = Callable[..., LocalRunOptions]
PATHS = RunPaths(Path("/d"), Path("/r"), Path("/m"), "n")


def shown(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(holdfast("config", "show", "--json", *arguments).stdout)["console.hosts"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_names_are_a_flag_that_can_be_repeated_or_a_list_in_the_file(folder: Path) -> None:
    assert shown() == {"value": [], "source": "default", "where": ""}
    (folder / "holdfast.toml").write_text('[console]\nhosts = ["proxy.example.com"]\n')
    assert shown() == {"value": ["proxy.example.com"], "source": "file", "where": "holdfast.toml:2"}
    flags = ("--console-host", "https://a.example.com", "--console-host", "b.example.com")
    hosts = ["https://a.example.com", "b.example.com"]
    assert shown(*flags) == {"value": hosts, "source": "flag", "where": "--console-host"}
    assert holdfast("config", "check").stdout.startswith("holdfast.toml: 1 setting, nothing is wrong")


def test_the_daemon_of_a_run_gets_them(options: Options) -> None:
    wanted = options(console_hosts=("https://a.example.com", "b.example.com"))
    words = daemon_command(PATHS, wanted, [])
    at = [number for number, word in enumerate(words) if word == "--console-host"]
    assert [words[number + 1] for number in at] == ["https://a.example.com", "b.example.com"]
    assert "--console-host" not in daemon_command(PATHS, options(), [])
    without = daemon_command(PATHS, options(console=False, console_hosts=("b.example.com",)), [])
    assert ("--no-console" in without, "--console-host" in without) == (True, False)


@pytest.mark.parametrize(
    "host", ["a.example.com", "https://A.example.com/", "http://a:8443", "[::1]", "https://[::1]:1"]
)
def test_a_name_with_or_without_a_scheme_is_taken(options: Options, host: str) -> None:
    assert options(console_hosts=(host,)).console_hosts == (host,)


@pytest.mark.parametrize(
    "host", ["", "https://", "ftp://a", "https://a/holdfast", "a:8443", "0.0.0.0", "me@a", "a b", "a?b", "[::1", "a:x"]
)
def test_anything_else_is_refused_in_one_line_by_every_command_that_takes_it(tmp_path: Path, host: str) -> None:
    place = ("--directory", str(tmp_path / "runs"))
    daemon = ("daemon", *place, "--control", "d.sock", "--redis", "redis://localhost:1", "--console-host", host)
    for command in (("run", *place, "--console-host", host, "--", "true"), daemon):
        result = holdfast(*command)
        assert result.exit_code == 78, result.output
        allowed = "use NAME, http://NAME or https://NAME, without a path"
        assert result.stderr == f"holdfast: --console-host {host}: {allowed}\n"


def test_a_refusal_names_the_line_of_the_file(folder: Path) -> None:
    (folder / "holdfast.toml").write_text('[console]\nhosts = ["https://a.example.com/holdfast"]\n')
    result = holdfast("config", "check")
    assert result.exit_code == 78
    assert "without a path (console.hosts at holdfast.toml:2)" in result.stderr
