"""Measures what an open `holdfast top` costs its machine, at 8, 1,000 and 10,000 ranks.

    python benchmarks/top.py [--json] [--ranks 8 1000 10000] [--seconds 20]

The real application shows a simulated run in a terminal without a screen, of 120 columns and 40 lines. The statuses are
made beforehand: steps advance, phases flicker, and one rank stalls now and then. Each look parses the bytes that a
daemon would send for the page, judges its ranks, and draws them. The time of an update is processor time, from the
bytes to the drawn screen, so that other work on the machine matters little. The share of a core is that of the whole
process, with one look a second. The last line is JSON.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast_cli.run_folder.target import Target  # noqa: E402
from holdfast_cli.top import poller  # noqa: E402
from holdfast_cli.top.background import LiveScreen  # noqa: E402
from holdfast_cli.top.ranks.rank_speeds import SpeedWatch  # noqa: E402
from holdfast_cli.top.run_looks import WHOLE_RUN, LookSource, RunLook  # noqa: E402
from holdfast_cli.top.top_app import TopApp  # noqa: E402
from holdfast_cli.views.narrowing import narrowed  # noqa: E402
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_FORWARD_BACKWARD, PHASE_OPTIMIZER  # noqa: E402
from holdfast_proto.v1.control_pb2 import RANK_HEALTH_STALLED, GetStatusRequest, RunStatus  # noqa: E402
from tests.cli.top.scenes import wide  # noqa: E402

STATES = 20
"""Statuses that the run goes through again and again: making them must not be measured."""
SIZE = (120, 40)
VIEWS = {"list": (), "map by health": ("m",), "map by step time": ("m", "m", "m")}
"""Name of a view -> the keys that lead to it from the one before."""
UPDATES = 30
_PHASES = (PHASE_DATA, PHASE_FORWARD_BACKWARD, PHASE_OPTIMIZER)


class SimulatedSource(LookSource):
    """Looks at statuses that are made beforehand, as bytes."""

    def __init__(self, ranks: int) -> None:
        super().__init__(Path(), None, None)
        self._target_shown = Target("llama-7b", Path("none.sock"), None)
        self._whole = [_status(ranks, number) for number in range(STATES)]
        self._is_paged = ranks > WHOLE_RUN
        self._made: dict[bytes, list[bytes]] = {}
        self._watch = SpeedWatch()
        self._at = 0

    @property
    def answer_bytes(self) -> int:
        """Size of the newest answer."""
        return len(self._states(self.page)[self._at % STATES])

    def look(self) -> RunLook:
        """Return the next state, read and judged as that of a daemon."""
        self._at += 1
        page = self.page
        status = RunStatus.FromString(self._states(page)[self._at % STATES])
        skipped = page.skip_ranks if self._is_paged else 0
        return RunLook.of(self._target_shown, status, (), self._watch.see(status), skipped=skipped)

    def _states(self, page: GetStatusRequest) -> list[bytes]:
        key = page.SerializeToString(deterministic=True) if self._is_paged else b""
        if key not in self._made:
            wanted = page if self._is_paged else GetStatusRequest()
            self._made[key] = [narrowed(status, wanted).SerializeToString() for status in self._whole]
        return self._made[key]


def _status(ranks: int, number: int) -> RunStatus:
    tp = min(8, ranks)
    status = wide(1, ranks // tp, tp, step=1200 + number)
    for view in status.ranks:
        view.phase = _PHASES[(view.rank * 7 + number) % len(_PHASES)]
        view.own_time_s, view.own_steps = (1.0 + view.rank % 5 / 100) * (100 + number), 100 + number
    if number >= STATES // 2:
        stalled = status.ranks[min(3, ranks - 1)]
        stalled.stalled_s, stalled.health = 3.0 + number, RANK_HEALTH_STALLED
    return status


async def measure(ranks: int, seconds: float) -> dict[str, Any]:
    """Return the time of an update and the share of a core, for each view."""
    source = SimulatedSource(ranks)
    app = TopApp(source, first=source.look())
    found: dict[str, Any] = {}
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        for name, keys in VIEWS.items():
            await pilot.press(*keys)
            await pilot.pause()
            source.look()  # makes the answers for this view
            await pilot.pause(2.0)  # the first looks are not those of an open view
            begun_s, used_s = time.monotonic(), time.process_time()
            await asyncio.sleep(seconds)
            share = (time.process_time() - used_s) / (time.monotonic() - begun_s)
            updates_s = []
            for _ in range(UPDATES):
                begun_s = time.thread_time()
                look = source.look()
                for screen in app.screen_stack:
                    if isinstance(screen, LiveScreen):
                        screen.show(look)
                app.screen._compositor.render_strips(app.size)  # noqa: SLF001 - what a driver writes
                updates_s.append(time.thread_time() - begun_s)
                await pilot.pause()
            found[name] = {
                "core_percent": round(100 * share, 2),
                "update_median_ms": round(1000 * statistics.median(updates_s), 1),
                "update_longest_ms": round(1000 * max(updates_s), 1),
                "answer_kb": round(source.answer_bytes / 1000, 1),
            }
    return found


def main() -> None:
    """Measure, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 1000, 10_000])
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for which each view stays open")
    parser.add_argument("--json", action="store_true", help="print the JSON alone")
    given = parser.parse_args()
    found = {}
    for ranks in given.ranks:
        found[ranks] = asyncio.run(measure(ranks, given.seconds))
        for view, cost in [] if given.json else found[ranks].items():
            print(
                f"{ranks:>6} ranks  {view:<18} {cost['core_percent']:>6.2f} % of a core  "
                f"update {cost['update_median_ms']:>6.1f} ms, longest {cost['update_longest_ms']:>6.1f} ms  "
                f"{cost['answer_kb']:>6.1f} kB a look"
            )
    shown = {"look_every_s": poller.LOOK_EVERY_S, **{str(ranks): cost for ranks, cost in found.items()}}
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
