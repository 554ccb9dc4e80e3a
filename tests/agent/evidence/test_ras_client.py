"""RAS is asked over TCP as NCCL's own client does it. Whatever else listens on its port is refused in one line."""

import contextlib
import socket
import threading

import pytest

from holdfast_agent.evidence import ras_client
from holdfast_agent.evidence.ras_client import RasError, address_of, ask
from tests.support.ras_server import REPORT, Behaviour, served, speaking

PATIENCE_S = 10.0
"""Longer than any server here takes: none of these tests waits for it."""


def asked(behaviour: Behaviour, timeout_s: float = PATIENCE_S) -> bytes:
    with served(behaviour) as address:
        return ask(address, timeout_s=timeout_s)


def refused(behaviour: Behaviour, timeout_s: float = PATIENCE_S) -> str:
    with served(behaviour) as address, pytest.raises(RasError) as caught:
        ask(address, timeout_s=timeout_s)
    reason = str(caught.value)
    assert reason.isprintable() and len(reason) < 500
    return reason


@pytest.mark.parametrize(("timeout_s", "leg"), [(0.9, 1), (7, 1), (11, 5), (600, 5)])
def test_ras_is_asked_for_its_report_and_gives_up_before_its_client_does(timeout_s: float, leg: int) -> None:
    said: list[str] = []
    assert asked(speaking(REPORT, said=said), timeout_s) == REPORT
    assert said == ["CLIENT PROTOCOL 2\n", f"TIMEOUT {leg}\n", "SET FORMAT json\n", "STATUS\n"]


def test_a_report_comes_in_any_pieces() -> None:
    def serve(connection: socket.socket) -> None:
        lines = connection.makefile("r", encoding="ascii")
        for answer in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", REPORT):
            lines.readline()
            for at in range(0, len(answer), 700):
                connection.sendall(answer[at : at + 2])
                connection.sendall(answer[at + 2 : at + 700])

    assert asked(serve) == REPORT


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(RasError, match="Connection refused"):
            ask(bound.getsockname(), timeout_s=PATIENCE_S)


def test_a_process_that_takes_connections_and_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # A stopped process and a running one share the port.
    monkeypatch.setattr(ras_client, "_GREETING_S", 0.05)
    met = []

    def serve(connection: socket.socket) -> None:
        met.append(connection)
        if len(met) > 1:
            speaking(REPORT)(connection)
        else:
            while connection.recv(100):
                pass

    assert asked(serve) == REPORT


@pytest.mark.parametrize("silent_at", ["client protocol", "status"])
def test_a_dripping_answer_ends_with_the_time_for_all_of_it(silent_at: str) -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        lines = connection.makefile("r", encoding="ascii")
        for answer in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n"):
            if lines.readline().lower().startswith(silent_at):
                break
            connection.sendall(answer)
        for letter in REPORT:
            connection.sendall(bytes([letter]))
            if over.wait(1.0):
                return

    with served(serve) as address:
        try:
            with pytest.raises(RasError, match=r"no answer within 0\.3 s$"):
                ask(address, timeout_s=0.3)
        finally:
            over.set()


def test_an_endless_report_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras_client, "LARGEST_REPORT_BYTES", 1 << 20)

    def serve(connection: socket.socket) -> None:
        speaking(b"")(connection)
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b" " * 65536)

    assert refused(serve) == "the report has more than 1 MiB"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"client protocol": b"SERVER PROTOCOL 3\n"}, '"SERVER PROTOCOL 3" is not the answer of protocol 2'),
        ({"client protocol": b"SERVER PROTOCOL 22\n"}, '"SERVER PROTOCOL 22" is not the answer of protocol 2'),
        ({"client protocol": b"HTTP/1.1 400 Bad\r\n"}, '"HTTP/1.1 400 Bad" is not the answer of protocol 2'),
        ({"client protocol": b"\x00\x1b[2J\n"}, '"??[2J" is not the answer of protocol 2'),
        ({"client protocol": b"S" * 9999}, f'"{"S" * 255}" is not the answer of protocol 2'),
        (
            # NCCL before 2.28.7, src/ras/client_support.cc.
            {"set format": b"ERROR: Unknown command SET FORMAT json\n"},
            'the answer to SET FORMAT json is "ERROR: Unknown command SET FORMAT json":'
            " JSON needs NCCL 2.28.7 or later",
        ),
    ],
)
def test_another_protocol_is_refused(answers: dict[str, bytes], reason: str) -> None:
    assert refused(speaking(REPORT, answers=answers)) == reason


def test_a_connection_that_is_closed_early_is_refused() -> None:
    assert refused(lambda connection: None) in (
        "the connection is closed before the answer",
        "[Errno 104] Connection reset by peer",
    )


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, ("localhost", 28028)),
        ({"NCCL_RAS_ENABLE": "1"}, ("localhost", 28028)),
        ({"NCCL_RAS_ENABLE": ""}, ("localhost", 28028)),
        ({"NCCL_RAS_ENABLE": "0"}, None),
        ({"NCCL_RAS_ENABLE": "2"}, None),
        ({"NCCL_RAS_ENABLE": "0", "NCCL_RAS_ADDR": "localhost:12345"}, None),
        ({"NCCL_RAS_ADDR": "localhost:12345"}, ("localhost", 12345)),
        ({"NCCL_RAS_ADDR": "10.0.0.5:12345"}, ("10.0.0.5", 12345)),
        ({"NCCL_RAS_ADDR": "[fe80::1%eth0]:12345"}, ("fe80::1%eth0", 12345)),
        ({"NCCL_RAS_ADDR": "[::1]:12345"}, ("::1", 12345)),
        ({"NCCL_RAS_ADDR": "localhost"}, None),
        ({"NCCL_RAS_ADDR": "localhost:0"}, None),
        ({"NCCL_RAS_ADDR": "localhost:65536"}, None),
        ({"NCCL_RAS_ADDR": "a b:1"}, None),
        ({"NCCL_RAS_ADDR": ""}, None),
    ],
)
def test_the_address_is_that_of_the_rank(environment: dict[str, str], address: tuple[str, int] | None) -> None:
    assert address_of(environment) == address
