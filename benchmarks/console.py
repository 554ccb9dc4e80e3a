"""Measures what an open page of the console costs the daemon, at 8, 1,000 and 10,000 ranks.

    python benchmarks/console.py [--json] [--ranks 8 1000 10000] [--seconds 20]

A process of its own holds a real console over a simulated run, whose states are made beforehand: steps advance, phases
flicker, and one rank stalls now and then. A client in this process reads a page's streams. The processor time that the
console's thread uses with the page, less that without, is the page's share of a core. The last line is JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.console_server import simulated_console  # noqa: E402

TICK_S = 0.2
STATES = 50
"""States that the run goes through again and again: making them must not be measured."""
PAGES = {
    "run": ("stream",),
    "ranks, health": ("ranks/stream?colour=health",),
    "ranks, step time": ("ranks/stream?colour=step_time",),
    "ranks, phase": ("ranks/stream?colour=phase",),
}


def serve(ranks: int) -> None:
    """Hold a console. Print its address, then the processor time of its thread for each line on stdin."""
    with (
        tempfile.TemporaryDirectory(prefix="hf-bench-") as folder,
        simulated_console(Path(folder), ranks=ranks, with_files=False) as it,
    ):
        run = it.run
        states = []
        for number in range(STATES):
            if number == STATES // 2:
                run.hang(min(3, ranks - 1))
            elif number == STATES // 2 + 15:
                run.revive()
            run.advance(TICK_S)
            states.append(run.state)
        stop = threading.Event()

        def play() -> None:
            at = 0
            while not stop.wait(TICK_S):
                it.on_loop(partial(setattr, run, "state", states[at % STATES]))
                run.now += TICK_S
                at += 1

        player = threading.Thread(target=play)
        player.start()
        console = next(thread for thread in threading.enumerate() if thread.name == "console")
        clock = time.pthread_getcpuclockid(console.ident or 0)
        print(json.dumps({"origin": it.origin, "token": it.operator, "run": run.run_name}), flush=True)
        for _ in sys.stdin:
            print(time.clock_gettime(clock), flush=True)
        stop.set()
        player.join()


class Reader(threading.Thread):
    """Reads one stream until it is closed; counts its bytes."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(daemon=True)
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        self.answer = urllib.request.urlopen(request, timeout=60)
        self.first_bytes = 0
        while line := self.answer.readline():
            self.first_bytes += len(line)
            if line == b"\n":
                break
        self.read_bytes = 0
        self.ends = False
        self.start()

    def run(self) -> None:
        """Count."""
        while not self.ends:
            self.read_bytes += len(self.answer.readline())


def measure(ranks: int, seconds: float) -> dict[str, Any]:
    """Return the cost of each page at a number of ranks."""
    command = [sys.executable, __file__, "--serve", str(ranks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout
        address = json.loads(stdout.readline())

        def used_s() -> float:
            stdin.write("\n")
            stdin.flush()
            return float(stdout.readline())

        def share_of(duration_s: float) -> float:
            begun_s, used_before_s = time.monotonic(), used_s()
            time.sleep(duration_s)
            return (used_s() - used_before_s) / (time.monotonic() - begun_s)

        idle = share_of(seconds / 2)
        pages: dict[str, Any] = {}
        for name, streams in PAGES.items():
            begun_s = used_s()
            base = f"{address['origin']}/api/runs/{address['run']}"
            readers = [Reader(f"{base}/{stream}", address["token"]) for stream in streams]
            first_s = used_s() - begun_s
            time.sleep(2.0)  # the first looks are not those of an open page
            read_before = sum(reader.read_bytes for reader in readers)
            at_s = time.monotonic()
            share = share_of(seconds)
            read = sum(reader.read_bytes for reader in readers) - read_before
            pages[name] = {
                "core_percent": round(100 * (share - idle), 2),
                "bytes_per_s": round(read / (time.monotonic() - at_s)),
                "first_frame_bytes": sum(reader.first_bytes for reader in readers),
                "first_frame_cpu_s": round(first_s, 3),
            }
            for reader in readers:
                reader.ends = True
            time.sleep(2.0)
        server.kill()
    return {"idle_core_percent": round(100 * idle, 2), "pages": pages}


def main() -> None:
    """Measure, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 1000, 10_000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true", help="print the JSON alone")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    found = {}
    for ranks in given.ranks:
        found[ranks] = measure(ranks, given.seconds)
        for page, cost in [] if given.json else found[ranks]["pages"].items():
            print(
                f"{ranks:>6} ranks  {page:<18} {cost['core_percent']:>6.2f} % of a core  "
                f"{cost['bytes_per_s'] / 1000:>7.1f} kB/s  first frame {cost['first_frame_bytes'] / 1000:>7.1f} kB"
            )
    print(json.dumps({str(ranks): cost for ranks, cost in found.items()}))


if __name__ == "__main__":
    main()
