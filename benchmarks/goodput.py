"""What Holdfast is worth: months of large jobs with the faults of Llama 3, next to plain torchrun.

Draws the faults of a month, and lets the same faults strike five jobs: Holdfast with its defaults, plain torchrun that
saves every 15 or every 60 minutes, and both with the interval that is best for each. What a fault costs comes from our
other benchmarks. ``--measure`` runs them again, which takes a quarter of an hour; else their recorded figures count.
How costs grow with the size of a job comes from publications: benchmarks/goodput_month/costs.py names all.

Then shows what limits Holdfast: its goodput if one part of the cost were free, and how much longer a start might take.

    python benchmarks/goodput.py [--measure] [--months 100] [--json]
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.goodput_month import costs
from benchmarks.goodput_month.month import (
    MONTH_S,
    PRODUCTIVE,
    REPEATED,
    SAVING,
    JobCosts,
    MonthFault,
    month_faults,
    spend_month,
)

WANTED = {1_000: 0.99, 16_384: 0.97}
"""Ranks -> least goodput of a job with Holdfast."""
USES = (PRODUCTIVE, REPEATED, SAVING, costs.NOTICE, costs.CHECK, costs.START, costs.COMMUNICATORS, costs.LOAD)

Months = Sequence[Sequence[MonthFault]]


def summed(job: JobCosts, months: Months) -> dict[str, Any]:
    """Return the mean share of each use, and the goodput of a bad month: one in twenty is worse."""
    shares = [
        {use: spent.get(use, 0.0) / MONTH_S for use in USES} for spent in (spend_month(job, month) for month in months)
    ]
    goodputs = sorted(share[PRODUCTIVE] for share in shares)
    mean = {use: statistics.fmean(share[use] for share in shares) for use in USES}
    return {"goodput": mean[PRODUCTIVE], "bad_month": goodputs[len(goodputs) // 20], "uses": mean}


def without(job: JobCosts, part: str) -> JobCosts:
    """Return a job for which one part of the cost is free."""
    if part == SAVING:
        return replace(job, saving_share=0.0)
    if part == REPEATED:
        return replace(job, state_every_s=1e-3, copied_after_s=0.0)
    pauses = {kind: {each: s for each, s in pause.items() if each != part} for kind, pause in job.pauses.items()}
    return replace(job, pauses=pauses)


def simulate(job: costs.LargeJob, measured: costs.Measured, count: int) -> dict[str, Any]:
    """Return the result of a job in ``count`` months: each way to run it, and what limits Holdfast."""
    dice = [random.Random(seed) for seed in range(count)]
    months = [list(month_faults(job.between_faults_s, costs.SHARES, each)) for each in dice]
    ways = costs.ways_to_run(job, measured)
    found = {way.name: summed(way, months) for way in ways}
    faults = statistics.fmean(len(month) for month in months)
    spare = found[costs.HOLDFAST]["goodput"] - WANTED.get(job.ranks, 0.0)
    return {
        "ranks": job.ranks,
        "faults_a_month": faults,
        "ways": found,
        "free": {part: summed(without(ways[0], part), months)["goodput"] for part in USES[1:]},
        "start_may_take_longer_s": spare * MONTH_S / faults if job.ranks in WANTED else None,
    }


def show(found: dict[str, Any], console: Console) -> None:
    """Print the table of a job."""
    limit, longer_s = WANTED.get(found["ranks"]), found["start_may_take_longer_s"]
    wanted = f"; wanted with Holdfast: over {limit:.0%}" if limit else ""
    table = Table(title=f"{found['ranks']:,} ranks, {found['faults_a_month']:.0f} faults a month{wanted}")
    for heading in ("share of the time", *found["ways"], "goodput if it were free"):
        table.add_column(heading, justify="right" if table.columns else "left")
    for use in USES:
        cells = [f"{row['uses'][use]:.2%}" for row in found["ways"].values()]
        table.add_row(use, *cells, f"{found['free'][use]:.2%}" if use in found["free"] else "")
    table.add_row("goodput in a bad month", *(f"{row['bad_month']:.2%}" for row in found["ways"].values()))
    console.print(table)
    if longer_s is not None:
        console.print(f"A start after a fault might take {longer_s:.0f} s longer before the goal is missed.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="run the benchmarks that the costs come from first")
    parser.add_argument("--months", type=int, default=100, help="months of each job (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    try:
        if arguments.measure:
            costs.measure(console.print)
        measured = costs.recorded()
        results = [simulate(job, measured, arguments.months) for job in costs.JOBS]
    except (OSError, ValueError) as error:
        print(f"goodput.py: {error}", file=sys.stderr)
        return 1
    for found in results:
        show(found, console)
    if arguments.json:
        print(json.dumps({"months": arguments.months, "jobs": results}))
    ours = {found["ranks"]: found["ways"][costs.HOLDFAST]["goodput"] for found in results}
    return 0 if all(ours[ranks] > limit for ranks, limit in WANTED.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
