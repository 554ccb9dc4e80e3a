import errno
import gzip
import http.client
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast_base import metrics_server
from holdfast_base.metrics_server import MAX_CONNECTIONS, MetricsServer
from tests.support.coroutines import wait_until


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("answer", "What it is.", registry=registry).set(42)
    with closing(metrics_server.serve(registry, "127.0.0.1", 0)) as served:
        yield served


def scrape(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@contextmanager
def connections(port: int, number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(number)]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def threads_of_server() -> int:
    return sum(thread.name == "metrics" for thread in threading.enumerate())


def test_registry_is_served_and_its_parts_by_name(server: MetricsServer) -> None:
    assert scrape(server.port) == (200, b"# HELP answer What it is.\n# TYPE answer gauge\nanswer 42.0\n")
    assert scrape(server.port, "/metrics?name%5B%5D=nothing") == (200, b"")
    status, packed = scrape(server.port, **{"Accept-Encoding": "gzip"})
    assert (status, b"answer 42.0" in gzip.decompress(packed)) == (200, True)
    assert scrape(server.port, method="POST")[0] == 405


def test_request_in_pieces_is_served(server: MetricsServer) -> None:
    with connections(server.port, 1) as (client,):
        for piece in (b"GET /met", b"rics HTTP/1.0\r\n", b"Accept: */*\r\n", b"\r\n"):
            client.sendall(piece)
            time.sleep(0.01)
        assert client.makefile("rb").read().endswith(b"answer 42.0\n")


@pytest.mark.parametrize(
    "request_bytes", [b"\r\n\r\n", b"GET\n\n", b"\x16\x03\x01\xff\n\n", b"GET / HTTP/1.1 x\r\n\r\n"]
)
def test_what_is_not_http_is_refused(server: MetricsServer, request_bytes: bytes) -> None:
    with connections(server.port, 1) as (client,):
        client.sendall(request_bytes)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 400 ")
    assert scrape(server.port)[0] == 200


def test_endless_request_is_cut(server: MetricsServer) -> None:
    with connections(server.port, 1) as (client,):
        client.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * metrics_server.MAX_REQUEST_BYTES)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 431 ")


def test_a_thousand_idle_connections_cost_one_thread_and_no_scrape(server: MetricsServer) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], 4096), limit[1]))
    try:
        before = open_descriptors()
        with connections(server.port, 1000) as clients:
            for _ in range(3):
                assert scrape(server.port)[0] == 200
            # The clients' own ends, and the server's connections.
            assert open_descriptors() <= before + len(clients) + MAX_CONNECTIONS + 8
            assert threads_of_server() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert server.dropped_total >= 1000 - MAX_CONNECTIONS


def test_client_that_sends_nothing_or_reads_nothing_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "READ_PATIENCE_S", 0.2)
    monkeypatch.setattr(metrics_server, "WRITE_PATIENCE_S", 0.2)
    registry = CollectorRegistry()
    counter = Counter("many", "Many.", ["label"], registry=registry)
    for index in range(40_000):  # more than the buffers of a connection take
        counter.labels(f"{index:0100}")
    with (
        closing(metrics_server.serve(registry, "127.0.0.1", 0)) as served,
        connections(served.port, 2) as (idle, deaf),
    ):
        deaf.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert idle.recv(1) == b""
        wait_until(lambda: served.dropped_total == 2, "both are dropped")


class Broken(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        raise KeyError("a key that is missing")


def test_collector_that_fails_is_an_answer_of_500_and_no_end() -> None:
    registry = CollectorRegistry()
    broken = Broken()
    registry.register(broken)
    with closing(metrics_server.serve(registry, "127.0.0.1", 0)) as served:
        assert scrape(served.port)[0] == 500
        registry.unregister(broken)
        assert scrape(served.port)[0] == 200


def test_closed_server_leaves_port_and_thread(server: MetricsServer) -> None:
    server.close()
    assert threads_of_server() == 0
    with pytest.raises(OSError) as refused:
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert refused.value.errno == errno.ECONNREFUSED


def test_port_in_use_is_one_line_that_names_the_setting(server: MetricsServer) -> None:
    with pytest.raises(
        OSError, match=r"^cannot serve metrics on 127.0.0.1:\d+: Address already in use: .*--metrics-port"
    ):
        metrics_server.serve(CollectorRegistry(), "127.0.0.1", server.port)
    with pytest.raises(OSError, match="--metrics-port"):
        metrics_server.serve(CollectorRegistry(), "no.such.host.invalid", 0)


SHORT_OF_DESCRIPTORS = """
import os, resource, socket, sys
from prometheus_client.registry import CollectorRegistry
from prometheus_client import Gauge
from holdfast_base import metrics_server
registry = CollectorRegistry()
Gauge("answer", "What it is.", registry=registry).set(42)
server = metrics_server.serve(registry, "127.0.0.1", 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
print(server.port, flush=True)
sys.stdin.read()
server.close()
"""


def test_metrics_are_served_by_a_process_that_has_no_descriptor_left() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SHORT_OF_DESCRIPTORS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(3):
            assert scrape(port)[0] == 200
        with connections(port, 20):  # one of them has the last descriptor, and is dropped for the next one
            assert scrape(port)[0] == 200
        process.stdin.close()
        process.wait(timeout=10)
    assert process.returncode == 0


def test_importing_the_package_alone_stays_light() -> None:
    code = "import sys, holdfast_proto; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
