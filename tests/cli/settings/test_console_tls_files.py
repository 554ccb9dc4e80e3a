"""The files of a console with TLS: flags, settings of the file, and refusals before anything starts."""

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_cli.commands.services.certs import write_certificates
from holdfast_cli.local_run.command_lines import daemon_command
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.paths import RunPaths
from tests.cli.conftest import holdfast

Options = Callable[..., LocalRunOptions]
PATHS = RunPaths(Path("/d"), Path("/r"), Path("/m"), "n")


@pytest.fixture(autouse=True)
def certs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_certificates(tmp_path / "certs", ["localhost"], datetime.datetime.now(datetime.UTC))
    return tmp_path / "certs"


def test_the_daemon_of_a_run_gets_the_files(options: Options, certs: Path) -> None:
    wanted = options(console_cert_file=Path("certs/server.crt"), console_key_file=Path("certs/server.key"))
    words = daemon_command(PATHS, wanted, [])
    at = words.index("--console-cert-file")
    assert words[at : at + 4] == [
        "--console-cert-file",
        str(certs / "server.crt"),
        "--console-key-file",
        str(certs / "server.key"),
    ]
    assert "--console-client-ca" not in words
    assert "--console-cert-file" not in daemon_command(PATHS, options(), [])


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--console-cert-file certs/server.crt", "--console-cert-file without --console-key-file: the console needs"),
        ("--console-client-ca certs/ca.crt", "--console-client-ca without --console-cert-file: the console needs"),
        ("--console-cert-file none --console-key-file certs/server.key", "none: No such file or directory"),
        ("--console-cert-file certs/server.crt --console-key-file certs/ca.key", "do not go together"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path, flags: str, problem: str) -> None:
    place = ("--directory", str(tmp_path / "runs"))
    daemon = ("daemon", *place, "--control", "d.sock", "--redis", "redis://localhost:1", *flags.split())
    for command in (("run", *place, *flags.split(), "--", "true"), daemon):
        result = holdfast(*command)
        assert (result.exit_code, problem in result.stderr) == (78, True), result.output
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
