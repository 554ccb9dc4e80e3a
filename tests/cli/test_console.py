"""``holdfast console``: the address with the right secret, and a clear line if there is none."""

import io
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.views.console_address import console_lines, start_lines
from holdfast_daemon.console.serving.sessions import load_tokens
from holdfast_proto import run_files
from holdfast_proto.endpoint import write_endpoint
from tests.cli.conftest import holdfast


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return tmp_path / "daemon.sock"


def serve(control: Path, address: str = "127.0.0.1", **others: str) -> None:
    tokens = str(control.with_name("console-tokens.json"))
    endpoint: dict[str, Any] = {"console_port": 4711, "console_address": address, "console_tokens": tokens, **others}
    write_endpoint(run_files.daemon_endpoint(control), 1, **endpoint)


def test_it_prints_the_address_with_the_secret_and_the_tunnel(control: Path, tmp_path: Path) -> None:
    tokens = load_tokens(tmp_path / "console-tokens.json")
    serve(control)
    for flags, token in (([], tokens.operator), (["--viewer"], tokens.viewer)):
        result = holdfast("console", "--control", control, *flags)
        assert result.exit_code == 0
        assert result.stdout.splitlines() == [
            f"console: http://127.0.0.1:4711/#token={token}",
            f"from another machine, first: ssh -N -L 4711:127.0.0.1:4711 {socket.gethostname()}",
        ]


def test_a_daemon_without_a_console_says_so_and_a_run_says_nothing_of_it(control: Path) -> None:
    write_endpoint(run_files.daemon_endpoint(control), 1)
    result = holdfast("console", "--control", control)
    assert result.exit_code != 0
    assert "the daemon serves no console" in result.output + str(result.exception)
    assert start_lines(control, io.StringIO()) == []


@pytest.mark.parametrize(
    ("address", "shown", "lines"),
    [("0.0.0.0", "127.0.0.1", 2), ("::1", "[::1]", 2), ("::", "127.0.0.1", 2), ("10.0.0.7", "10.0.0.7", 1)],
)
def test_the_address_can_be_opened(control: Path, address: str, shown: str, lines: int) -> None:
    serve(control, address)
    found = console_lines(control)
    assert found[0] == f"console: http://{shown}:4711/"
    assert len(found) == lines


def test_the_address_of_a_console_with_tls_says_so(control: Path) -> None:
    serve(control, console_scheme="https")
    assert console_lines(control)[0] == "console: https://127.0.0.1:4711/"
    serve(control, console_scheme="gopher")
    assert console_lines(control)[0] == "console: http://127.0.0.1:4711/"


def test_secrets_of_another_user_are_left_out(control: Path, tmp_path: Path) -> None:
    serve(control)
    (tmp_path / "console-tokens.json").mkdir()
    assert console_lines(control)[0] == "console: http://127.0.0.1:4711/"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_shows_the_secret_when_a_run_starts(control: Path, tmp_path: Path) -> None:
    load_tokens(tmp_path / "console-tokens.json")
    serve(control)
    shown, logged = start_lines(control, _Terminal()), start_lines(control, io.StringIO())
    assert "#token=" in shown[0]
    assert "token=" not in " ".join(logged)
    assert logged[0] == "console: http://127.0.0.1:4711/"
    assert "holdfast console" in logged[-1]
