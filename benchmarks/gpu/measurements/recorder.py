"""What NCCL's recorder shows in a world of one, what a dump costs, and what torch's worker server answers.

On a CPU, gloo and the generic recorder take their place. Before torch 2.14 a dump with entries may crash the process
(see progress/recorders/recorder.py in the hooks). The part would then fail, and no other part with it.
"""

import contextlib
import http.client
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.measure import NeedsMoreError
from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.timing import busy_for, median_us, synchronize, us
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.session.own_worker_server import WorkerServer

_CALLS = 50
_FULL_RING = 2000
_BUSY_S = 1.5
_WATCHDOG_S = 30.0
_HANDLERS = ("dump_nccl_trace_json", "fr_trace_json", "dump_traceback", "ping")

Dump = Callable[[bool, bool], bytes]


@contextlib.contextmanager
def world_of_one(device: str) -> Iterator[Dump]:
    """Yield the dump of the recorder that sees the calls of tensors on the device."""
    if device == "cuda" and not dist.is_nccl_available():
        raise NeedsMoreError("this torch has no NCCL")
    bindings: Any = torch._C._distributed_c10d
    dump: Dump = bindings._dump_nccl_trace_json if device == "cuda" else bindings._dump_fr_trace_json
    store = dist.HashStore()  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield dump
    finally:
        dist.destroy_process_group()


def status_of(dump: Dump) -> dict[str, int]:
    """Return the newest numbers of the first group."""
    (status, *_) = json.loads(dump(False, False))["pg_status"].values()
    return {name: int(value) for name, value in status.items()}


def entries_of(dump: Dump) -> list[dict[str, Any]]:
    """Return all entries, oldest first."""
    return list(json.loads(dump(True, False)).get("entries", ()))


def measure(device: str) -> Outcome:
    """Make calls, and look at the recorder before, during and after them."""
    with world_of_one(device) as dump:
        value = torch.ones(1 << 16, device=device)
        for _ in range(_CALLS):
            dist.all_reduce(value)
        synchronize(device)
        checks = [_are_recorded(dump), _is_all_retired(dump)]
        document = json.loads(dump(True, False))
        newest = document["entries"][-1]
        figures = {
            "version of the document": str(document["version"]),
            "name of a call": newest["profiling_name"],
            "state of a finished call": f"{newest['state']}, retired {newest['retired']}",
            "status after the calls": str(status_of(dump)),
            "configuration of the groups": json.dumps(document.get("pg_config")),
        }
        if device == "cuda":
            checks.append(_unfinished_calls_show(dump, value, figures))
        _time_dumps(dump, value, device, figures)
        checks.append(_ask_worker_server(figures, is_nccl=device == "cuda"))
    return Outcome.of(figures, checks)


def _are_recorded(dump: Dump) -> Check:
    entries = [entry for entry in entries_of(dump) if "all_reduce" in entry["profiling_name"]]
    return Check(f"all {_CALLS} calls have an entry", len(entries) == _CALLS, f"{len(entries)} entries")


def _is_all_retired(dump: Dump) -> Check:
    began_s = time.monotonic()
    while time.monotonic() - began_s < _WATCHDOG_S:
        if all(entry["retired"] for entry in entries_of(dump)):
            took_s = time.monotonic() - began_s
            return Check("finished calls are retired", True, f"after {took_s:.2f} s at most")
        time.sleep(0.01)
    left = sum(not entry["retired"] for entry in entries_of(dump))
    return Check("finished calls are retired", False, f"{left} are not after {_WATCHDOG_S:g} s")


def _unfinished_calls_show(dump: Dump, value: torch.Tensor, figures: dict[str, str]) -> Check:
    """Enqueue calls behind a long kernel: they must be in the recorder, and not retired."""
    before = status_of(dump)["last_enqueued_collective"]
    busy_for(_BUSY_S, "cuda")
    for _ in range(5):
        dist.all_reduce(value)
    time.sleep(0.3)
    entries = [entry for entry in entries_of(dump) if not entry["retired"]]
    status = status_of(dump)
    synchronize("cuda")
    figures["states of five calls behind a long kernel"] = ", ".join(entry["state"] for entry in entries)
    figures["status behind a long kernel"] = str(status)
    held = len(entries) == 5 and status["last_enqueued_collective"] == before + 5
    return Check("calls behind a long kernel are enqueued and not retired", held, f"{len(entries)} not retired")


def _time_dumps(dump: Dump, value: torch.Tensor, device: str, figures: dict[str, str]) -> None:
    for _ in range(_FULL_RING):
        dist.all_reduce(value)
    synchronize(device)
    figures["status only"] = us(median_us(lambda: dump(False, False), times=300))
    figures[f"dump of {len(entries_of(dump))} entries"] = us(median_us(lambda: dump(True, False), times=10))
    figures["active entries only"] = us(median_us(lambda: dump(True, True), times=10))
    figures["longest stop of another thread during a dump"] = us(_longest_stop_us(lambda: dump(True, False)))


def _longest_stop_us(call: Callable[[], object]) -> float:
    gaps: list[float] = []
    ended = threading.Event()

    def tick() -> None:
        before_ns = time.perf_counter_ns()
        while not ended.is_set():
            now_ns = time.perf_counter_ns()
            gaps.append((now_ns - before_ns) / 1000)
            before_ns = now_ns
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(5):
        call()
    ended.set()
    thread.join()
    return max(gaps, default=0.0)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _ask_worker_server(figures: dict[str, str], *, is_nccl: bool) -> Check:
    """Ask the server that answers without the interpreter's lock, started as the hooks start it."""
    needed = "dump_nccl_trace_json" if is_nccl else "fr_trace_json"
    what = f"the worker server answers {needed}"
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        server = WorkerServer(f"unix:{folder}/agent.sock", OnceLog(), {})
        server.start()
        if not server.path:
            return Check(what, False, "it did not start: the log says why")
        answered = {handler: _ask(Path(server.path), handler, figures) for handler in _HANDLERS}
        server.close()
    return Check(what, answered[needed], ", ".join(name for name, held in answered.items() if held))


def _ask(path: Path, handler: str, figures: dict[str, str]) -> bool:
    taken_ms, status, nbytes = [], 0, 0
    for _ in range(5):
        began_s = time.perf_counter()
        connection = _UnixConnection(path)
        try:
            connection.request("POST", f"/handler/{handler}")
            response = connection.getresponse()
            status, nbytes = response.status, len(response.read())
        finally:
            connection.close()
        taken_ms.append((time.perf_counter() - began_s) * 1000)
    figures[f"worker server, {handler}"] = f"HTTP {status}, {nbytes} bytes, {statistics.median(taken_ms):.1f} ms"
    return status == http.HTTPStatus.OK
