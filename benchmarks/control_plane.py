"""Measure what the control plane costs with 1,000 to 100,000 ranks, and how soon it reports a hang.

A real Redis-compatible server and a real daemon serve simulated agents, 8 ranks a node. Each agent publishes its state
as often as a real one, and reports each step. After a while of healthy training one rank hangs, and all others come to
wait for it. The daemon only observes. A hang is one verdict, measured from the end of its deadline until the incident
is in Redis. The deadline is three steps.

If the machine cannot keep up, simulated time passes more slowly than real time. The factor says how much. Then the
daemon makes more ticks in a simulated second than it would, and each of them finds fewer new states. The seconds after
the deadline are simulated ones, and the CPU seconds of the daemon and the server in them stand next to them. Agents
that wait for commands are left out.

    python benchmarks/control_plane.py [--json] [--quick] [--ranks 1000 10000 100000] [--cases N]
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.control_plane_ranks.scale_trial import measure
from benchmarks.control_plane_ranks.training_nodes import LAYOUTS

CASES = {1_000: 10, 4_000: 5, 10_000: 3, 100_000: 1}
"""Hangs of each size."""
QUICK_CASES = 2
BYTES_OF_A_RANK = 60_000
"""Memory that a rank takes in all processes. Most of it is its program, in the simulation."""
FIGURES = {
    "state_kb": ("state of a node", "kB"),
    "in_mb_per_s": ("into the server", "MB/s"),
    "out_mb_per_s": ("out of the server", "MB/s"),
    "server_cores": ("server, CPU", "s/s"),
    "daemon_cores": ("daemon, CPU", "s/s"),
    "tick_cpu_s": ("tick, CPU", "s"),
    "core_tick_s": ("of it, the core", "s"),
    "rss_mb": ("daemon, memory", "MB"),
    "scrape_s": ("a scrape of /metrics", "s"),
    "verdict_after_s": ("verdict after its deadline, longest", "s"),
    "verdict_cpu_s": ("CPU until the verdict, longest", "s"),
}
_AT_10_000 = {"in_mb_per_s": 5.0, "tick_cpu_s": 0.1, "rss_mb": 400.0, "verdict_after_s": 1.0}
_AT_100_000 = {"in_mb_per_s": 30.0, "tick_cpu_s": 1.0, "rss_mb": 1500.0, "verdict_after_s": 2.0}
_ONE_CORE = {"daemon_cores": 1.0, "server_cores": 1.0}


def wanted(ranks: int) -> dict[str, float]:
    """Return the most that each figure may be."""
    return _ONE_CORE | (_AT_10_000 if ranks <= 10_000 else _AT_100_000)


def next_to_break(row: dict[str, Any]) -> tuple[str, float]:
    """Return the figure that is furthest over what is wanted, or nearest to it, and their ratio."""
    ratios = {name: row[name] / most for name, most in wanted(row["ranks"]).items() if row.get(name) is not None}
    return max(ratios.items(), key=lambda item: item[1])


def reason_to_skip(ranks: int) -> str | None:
    """Return why a size cannot be measured on this machine; None: it can."""
    needed, free = BYTES_OF_A_RANK * ranks, psutil.virtual_memory().available
    if needed < 0.8 * free:
        return None
    return f"skipped: the simulation needs {needed / 1e9:.0f} GB of memory, and {free / 1e9:.0f} GB are free"


def summed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the summary of its hangs, and the figure that breaks next."""
    hangs = row["hangs"]
    after_s = sorted(hang["after_s"] for hang in hangs if hang["after_s"] is not None)
    whole = row | {
        "named": sum(hang["named"] for hang in hangs),
        "verdict_after_median_s": after_s[len(after_s) // 2] if after_s else None,
        "verdict_after_s": after_s[-1] if after_s and len(after_s) == len(hangs) else None,
        "verdict_cpu_s": max((hang["cpu_s"] for hang in hangs if hang["cpu_s"] is not None), default=None),
    }
    figure, ratio = next_to_break(whole)
    return whole | {"next": figure, "next_ratio": ratio}


def measured(ranks: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a size, or why there is none."""
    skipped = reason_to_skip(ranks)
    if skipped:
        return {"ranks": ranks, "skipped": skipped}
    began = time.monotonic()
    cases = given.cases or (QUICK_CASES if given.quick else CASES[ranks])
    try:
        row = asyncio.run(measure(ranks, cases, given.step_s, given.seed, given.limit))
    except TimeoutError as error:
        return {"ranks": ranks, "skipped": f"given up: {error or 'a write took too long'}"}
    return summed(row) | {"took_s": time.monotonic() - began}


def show(row: dict[str, Any], console: Console) -> None:
    """Print the table of a size."""
    if "skipped" in row:
        console.print(f"{row['ranks']:,} ranks: {row['skipped']}")
        return
    limits = wanted(row["ranks"])
    table = Table(f"{row['ranks']:,} ranks", "measured", "wanted, at most", "")
    for name, (label, unit) in FIGURES.items():
        value, most = row[name], limits.get(name)
        text = "none" if value is None else f"{value:,.3g} {unit}"
        over = most is not None and (value is None or value > most)
        table.add_row(label, text, f"{most:g} {unit}" if most is not None else "", "OVER" if over else "")
    console.print(table)
    label, _ = FIGURES[row["next"]]
    where = "is over" if row["next_ratio"] > 1 else "is at"
    if "given_up" in row:
        console.print(f"Hangs are missing: {row['given_up']}")
    console.print(
        f"{row['named']} of {len(row['hangs'])} hangs named right. {row['ticks']:.0f} ticks. "
        f"Real time is {row['factor']:.2f} times simulated time.\n"
        f"Next to break: {label} {where} {row['next_ratio']:.2g} times what is wanted."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", choices=LAYOUTS, default=[1_000, 10_000, 100_000])
    parser.add_argument("--cases", type=int, default=0, help="hangs of each size (default: 10 down to 1)")
    parser.add_argument("--step-s", type=float, default=2.0, help="seconds of a step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the hangs (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=900.0, help="most seconds of a size (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="measure 1,000 ranks alone, with two hangs")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    given = parser.parse_args()
    console, rows = Console(), []
    for ranks in [1_000] if given.quick else given.ranks:
        rows.append(measured(ranks, given))
        show(rows[-1], console)
    if given.json:
        print(json.dumps({"step_s": given.step_s, "seed": given.seed, "sizes": rows}))
    return 0 if all(row.get("named") == len(row.get("hangs", [])) for row in rows if "skipped" not in row) else 1


if __name__ == "__main__":
    sys.exit(main())
