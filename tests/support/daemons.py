"""Daemons in processes of their own, started as an operator starts them."""

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from holdfast_proto import run_files
from holdfast_proto.endpoint import read_endpoint
from holdfast_proto.v1 import control_pb2_grpc
from tests.support.coroutines import wait_until
from tests.support.exposition import total
from tests.support.run_keys import write_key
from tests.support.store_server import StoreServer


@dataclass(frozen=True)
class DaemonProcess:
    """A daemon that serves."""

    process: "subprocess.Popen[bytes]"
    control: Path
    log_file: Path

    @property
    def metrics_port(self) -> int:
        """Port at which it serves its metrics."""
        endpoint = read_endpoint(run_files.daemon_endpoint(self.control))
        assert endpoint is not None
        return endpoint.metrics_port

    @property
    def log(self) -> str:
        """Its log so far."""
        return self.log_file.read_text()

    def refused(self, run: str) -> float:
        """Return the number of messages of a run that it has refused."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            return total(answer.read().decode(), "holdfast_messages_refused_total", run=run)

    def stub(self) -> Any:
        """Return a blocking stub of the operators' service."""
        channel = grpc.insecure_channel(f"unix:{self.control}")
        return control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def daemon_process(
    folder: Path, server: StoreServer, name: str = "host", *, label: str = "a", wrapper: tuple[str, ...] = ()
) -> Iterator[DaemonProcess]:
    """Yield a daemon that serves. ``label`` keeps the files of two daemons of one name apart."""
    control, log_file = folder / f"{label}.sock", folder / f"{label}.log"
    files = folder / label
    options = {"--name": name, "--redis": server.url, "--directory": files, "--control": control, "--lease": "1"}
    options["--run-key-file"] = write_key(folder, "any")
    words = [str(word) for option in options.items() for word in option]
    command = [*wrapper, sys.executable, "-m", "holdfast_cli", "daemon", *words, "--metrics-port", "0"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    it = DaemonProcess(process, control, log_file)
    try:
        wait_until(lambda: process.poll() is not None or run_files.daemon_endpoint(control).exists(), "it serves")
        assert process.poll() is None, it.log
        yield it
    finally:
        it.kill()
