import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_base.sockets import claimed, split_address


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:  # pytest's own paths are too long
        yield Path(folder) / "s.sock"


def bind(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    return server


def test_a_socket_is_created_for_its_owner_alone(path: Path) -> None:
    with claimed(path, "--control") as target, bind(path):
        assert target == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_dead_service_has_left_is_replaced(path: Path) -> None:
    bind(path).close()
    assert path.exists()
    with claimed(path, "--control"):
        assert not path.exists()


def test_a_socket_that_another_process_serves_is_left_alone(path: Path) -> None:
    with bind(path) as server:
        server.listen(1)
        with pytest.raises(OSError, match=r"s\.sock is in use by another process: choose another --control"):
            claimed(path, "--control").__enter__()
    assert path.exists()


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30)
    with pytest.raises(OSError, match="--control"):
        claimed(path, "--control").__enter__()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node-7", ("node-7", 0)),
        ("10.0.0.7:9200", ("10.0.0.7", 9200)),
        ("[fd00::7]", ("fd00::7", 0)),
        ("[fd00::7]:65535", ("fd00::7", 65_535)),
    ],
)
def test_an_address_is_split_into_host_and_port(text: str, found: tuple[str, int]) -> None:
    assert split_address(text) == found


@pytest.mark.parametrize("text", ["", ":7", "a:", "a:b", "a:65536", "fd00::7", "[fd00::7", "tcp://a:1", "a b", "a@b:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use HOST, HOST:PORT or"):
        split_address(text)
