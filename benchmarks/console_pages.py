"""Measures the script time of the console's map of ranks: one update of all cells, in a real browser.

    python benchmarks/console_pages.py --json

A real server shows simulated ranks. The page follows them; each second the server sends what has changed. Two numbers
are measured: the page's own time for handling an update and drawing it (`performance.now` around both), and all script
time of the browser's main thread per update, which also has the parsing of the event.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.console_browser import chromium, new_context, watched_page  # noqa: E402
from tests.support.console_server import SimulatedConsole, simulated_console  # noqa: E402

OBSERVE = """
window.measured = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntriesByName("holdfast-ranks-update")) window.measured.push(entry.duration);
}).observe({ type: "measure" });
"""


def percentile(values: list[float], ratio: float) -> float:
    """Return the value below which a share of the values is."""
    return sorted(values)[min(int(ratio * len(values)), len(values) - 1)]


def measure(console: SimulatedConsole, updates: int, colour: str) -> dict[str, Any]:
    """Return the times of a number of updates. The run trains meanwhile."""
    stop = threading.Event()

    def train() -> None:
        while not stop.wait(0.5):
            console.on_loop(lambda: console.run.advance(0.25))

    with chromium() as browser:
        page, watch = watched_page(new_context(browser), console.origin)
        page.add_init_script(OBSERVE)
        page.goto(console.address())
        page.goto(f"{console.origin}/#/runs/{console.run.run_name}/ranks")
        page.wait_for_selector(".mesh canvas", timeout=60_000)
        page.get_by_label("Colour by").select_option(colour)
        page.wait_for_timeout(3000)
        page.evaluate("window.measured.length = 0")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        before = script_seconds(session)
        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + 10 * updates
            while page.evaluate("window.measured.length") < updates:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the page has drawn fewer than {updates} updates in {10 * updates} s")
                page.wait_for_timeout(500)
        finally:
            stop.set()
            thread.join()
        times = page.evaluate("window.measured")
        script_s = script_seconds(session) - before
        watch.expect_nothing()
    return {
        "ranks": console.run.ranks,
        "colour": colour,
        "updates": len(times),
        "own_ms_p50": round(percentile(times, 0.5), 3),
        "own_ms_p95": round(percentile(times, 0.95), 3),
        "own_ms_max": round(max(times), 3),
        "all_script_ms_mean": round(1000 * script_s / len(times), 3),
    }


def script_seconds(session: CDPSession) -> float:
    """Return the seconds of script that the page's main thread has run."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "ScriptDuration")


def main() -> None:
    """Measure, and print one line for each number or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--colour", default="phase", help="phase, health, step_time, memory or utilisation")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="hf-pages-") as folder,
        simulated_console(Path(folder), ranks=given.ranks, with_files=False) as console,
    ):
        result = measure(console, given.updates, given.colour)
    print(json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
