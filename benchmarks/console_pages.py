"""Measures the pages of the console in a real browser: script time of the map of ranks, and how soon a verdict shows.

    python benchmarks/console_pages.py --json
    python benchmarks/console_pages.py --json --verdicts 30

A real server shows simulated ranks, and the page follows them. The daemon spares its processor: at 10,000 ranks it
sends an update each few seconds. Here it sends one five times a second, so that hundreds are measured in a few minutes.
The run's clock advances by those few seconds between two updates, so that each holds as many changes as in a real run.
Two numbers are measured: the page's own time for handling an update and drawing it (`performance.now` around both), and
all script time of the browser's main thread per update, which also has the parsing of the event.

With ``--verdicts`` the daemon keeps its own pace. Measured is the time from the moment at which the console sees an
incident in the state of the run until the page of the run names the culprit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast_daemon.console import live_feeds  # noqa: E402
from holdfast_daemon.console.serving import streams  # noqa: E402
from tests.support.console_browser import chromium, new_context, watched_page  # noqa: E402
from tests.support.console_server import SimulatedConsole, simulated_console  # noqa: E402

PAUSE_S = 0.2
"""Pause between two updates here."""
ADVANCE_S = 2.37
"""Pause between two updates of 10,000 ranks in a real run."""
OBSERVE = """
window.measured = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntriesByName("holdfast-ranks-update")) window.measured.push(entry.duration);
}).observe({ type: "measure" });
"""


SEE_CULPRIT = """
(culprit) => {
  window.shownAt = null;
  const look = () => {
    const heading = document.querySelector(".verdict.bad h2");
    if (heading && heading.textContent.includes(culprit)) window.shownAt = Date.now();
    else requestAnimationFrame(look);
  };
  look();
}
"""


def percentile(values: list[float], ratio: float) -> float:
    """Return the value below which a share of the values is."""
    return sorted(values)[min(int(ratio * len(values)), len(values) - 1)]


def measure(console: SimulatedConsole, updates: int, colour: str) -> dict[str, Any]:
    """Return the times of a number of updates. The run trains meanwhile."""
    stop = threading.Event()

    def train() -> None:
        while not stop.wait(PAUSE_S):
            console.on_loop(lambda: console.run.advance(ADVANCE_S))

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


def measure_verdicts(console: SimulatedConsole, count: int) -> dict[str, Any]:
    """Return how long the page of a run takes to show a hang. The moments are spread over the pauses of the daemon."""
    chance = random.Random(1)
    waits_s: list[float] = []
    with chromium() as browser:
        page, watch = watched_page(new_context(browser), console.origin)
        page.goto(console.address())
        page.goto(f"{console.origin}/#/runs/{console.run.run_name}")
        page.wait_for_selector(".progress-line", timeout=60_000)
        for number in range(count):
            console.on_loop(lambda: console.run.advance(1.0))
            page.wait_for_timeout(2000 + chance.uniform(0.0, 1500.0))
            rank = number % min(console.run.ranks, 64)
            page.evaluate(SEE_CULPRIT, f"rank {rank}")
            seen_s = time.time()
            console.on_loop(partial(console.run.judge, rank))
            while page.evaluate("window.shownAt") is None:  # the page's policy forbids scripts that wait in it
                if time.time() > seen_s + 30.0:
                    raise TimeoutError("the page has not shown a verdict within 30 s")
                page.wait_for_timeout(50)
            waits_s.append(page.evaluate("window.shownAt") / 1000 - seen_s)
            console.on_loop(console.run.recover)
            page.wait_for_selector(".verdict.bad", state="detached", timeout=30_000)
        watch.expect_nothing()
    return {
        "ranks": console.run.ranks,
        "verdicts": count,
        "shown_s_p50": round(percentile(waits_s, 0.5), 3),
        "shown_s_p95": round(percentile(waits_s, 0.95), 3),
        "shown_s_max": round(max(waits_s), 3),
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
    parser.add_argument("--verdicts", type=int, default=0, help="measure this number of verdicts instead")
    given = parser.parse_args()
    if not given.verdicts:
        live_feeds.RANKS_PAUSE_S, streams.COST_RATIO = PAUSE_S, 0.0
    with (
        tempfile.TemporaryDirectory(prefix="hf-pages-") as folder,
        simulated_console(Path(folder), ranks=given.ranks, with_files=False) as console,
    ):
        if given.verdicts:
            result = measure_verdicts(console, given.verdicts)
        else:
            result = measure(console, given.updates, given.colour)
    print(json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
