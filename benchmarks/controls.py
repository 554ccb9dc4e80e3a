"""Check that healthy runs with an unusual moment are left alone in mode act, and that their twins are restarted.

Each control is a small training script with real hooks. It does what users' scripts do: it evaluates, recompiles,
saves, downloads, sleeps. Its pause is longer than the deadline of a report and shorter than that of a restart. The
first generation must train to the last step, with at most one incident. The twin of a control never ends the pause. It
must be restarted when the table in docs/detectors.md says so. The preset is fast, with --restart-patience 0.3.

    python benchmarks/controls.py [--quick] [--only CASE] [--controls | --twins] [--unscaled PRESET] [--jobs 4] [--json]
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.odd_runs.case import OddCase
from benchmarks.odd_runs.cases import ALL, CASES, QUICK
from benchmarks.odd_runs.cases.users_deadlines import UNSCALED
from benchmarks.odd_runs.judge import Result, judge
from benchmarks.odd_runs.odd_run import observe

Job = tuple[OddCase, bool]
"""A case, and whether to run its twin."""


def carry_out(jobs: list[Job], folder: Path, at_a_time: int) -> Iterator[Result]:
    """Yield the results as the runs end. Runs that compute much go one at a time, next to the others."""
    longest_first = sorted(jobs, key=lambda job: -_usual_s(*job))
    with ThreadPoolExecutor(1) as heavy, ThreadPoolExecutor(at_a_time) as light:
        futures = [
            (heavy if case.heavy else light).submit(_one, case, folder, twin=twin) for case, twin in longest_first
        ]
        for future in as_completed(futures):
            yield future.result()


def _one(case: OddCase, folder: Path, *, twin: bool) -> Result:
    return judge(case, observe(case, folder, twin=twin), twin=twin)


def _usual_s(case: OddCase, twin: bool) -> float:
    return case.as_twin().restart_deadline_s if twin else case.lasts_s * len(case.steps)


def summary(results: list[Result]) -> dict[str, object]:
    """Return the object of ``--json``: counts, and every result."""
    controls = [result for result in results if not result.twin]
    twins = [result for result in results if result.twin]
    return {
        "controls": len(controls),
        "restarts": sum(result.restarts for result in controls),
        "failed_runs": sum(result.failed for result in controls),
        "notes_over_one": sum(result.too_many_notes for result in controls),
        "controls_as_wanted": sum(not result.problems for result in controls),
        "twins": len(twins),
        "twins_in_time": sum(not result.problems for result in twins),
        "cases": [asdict(result) for result in results],
    }


def chosen(arguments: argparse.Namespace) -> list[Job]:
    """Return the jobs that the options select."""
    if arguments.unscaled:
        return [(case, False) for preset in arguments.unscaled for case in UNSCALED[preset]]
    names = arguments.only or (QUICK if arguments.quick else [case.name for case in ALL])
    kinds = [twin for twin, left_out in ((False, arguments.twins), (True, arguments.controls)) if not left_out]
    return [(CASES[name], twin) for name in names for twin in kinds]


def _print_result(result: Result, console: Console) -> None:
    who = "twin" if result.twin else "control"
    seconds = "-" if result.seconds is None else f"{result.seconds:.1f} s"
    line = f"{'WRONG' if result.problems else 'ok   '} {who:7} {result.case}: {seconds}"
    line += f" (report {result.report_deadline_s:g} s, restart {result.restart_deadline_s:g} s)"
    console.print(f"{line}, {result.took_s:.0f} s in all", highlight=False, markup=False)
    if result.problems:
        for text in (*result.problems, *result.notes):
            console.print(f"      {text}", highlight=False, markup=False)


def main() -> int:
    """Run the chosen cases; return 1 if one of them has a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run ten cases that cover every row of the table")
    parser.add_argument("--only", action="append", choices=CASES, metavar="CASE", help="run this case (repeatable)")
    parser.add_argument("--controls", action="store_true", help="run only the controls")
    parser.add_argument("--twins", action="store_true", help="run only the twins")
    parser.add_argument(
        "--unscaled",
        action="append",
        choices=UNSCALED,
        metavar="PRESET",
        help="run three controls with a preset's own deadlines",
    )
    parser.add_argument("--jobs", type=int, default=4, help="number of light runs at a time (default: 4)")
    parser.add_argument("--list", action="store_true", help="print the cases with their deadlines, and run none")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json, width=4000 if arguments.json else None, soft_wrap=True)
    if arguments.list:
        for case in CASES.values():
            print(f"{case.name}: {case.lasts_s:g} s ({case.report_deadline_s:g} to {case.restart_deadline_s:g} s)")
        return 0
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-odd-") as folder:
        for result in carry_out(chosen(arguments), Path(folder), arguments.jobs):
            results.append(result)
            _print_result(result, console)
    found = summary(results)
    table = Table("", "", title="Healthy runs and their twins")
    for key, value in found.items():
        if not isinstance(value, list):
            table.add_row(key, str(value))
    console.print(table)
    if arguments.json:
        print(json.dumps(found))
    return int(any(result.problems for result in results))


if __name__ == "__main__":
    sys.exit(main())
