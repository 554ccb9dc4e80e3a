"""Measure how well faults are reported: inject hundreds into real runs, and compare the verdicts with the faults.

Each layout has one run. It trains, is harmed, recovers and is harmed again, under the preset fast. The file
harmed_runs/truth.py defines which verdict is right for which fault. Ranks log for themselves in which call they are, so
the call in which they hang is known. Healthy controls run under every preset: they are slow for a good reason, and
nothing may be reported about them.

    python benchmarks/detection.py [--cases 320] [--quick] [--only FAULT] [--layout LAYOUT] [--json]
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harmed_runs.fault_cases import FAULTS, LAYOUTS, Case, corpus
from benchmarks.harmed_runs.harmed_run import Outcome, harmed_one_by_one
from benchmarks.harmed_runs.healthy_controls import CONTROLS, PRESETS, ControlOutcome, healthy_controls
from benchmarks.harmed_runs.score import is_right, score, shortfalls
from holdfast_proto.message_json import enum_name
from holdfast_proto.v1 import store_pb2 as store

CASES = 320
QUICK_LAYOUTS = ("dp2tp2",)
QUICK_CASES = 8
QUICK_FAULTS = ("kill", "exception", "stop", "infinite-loop", "gil-held", "data-stall", "nan-gradient")


def injected(plan: dict[str, list[Case]], folder: Path, console: Console) -> list[Outcome]:
    """Inject all cases, layout by layout, and print those with a wrong verdict."""
    outcomes: list[Outcome] = []
    for layout, cases in plan.items():
        console.print(f"{layout}: {len(cases)} faults")
        for outcome in harmed_one_by_one(layout, cases, folder):
            outcomes.append(outcome)
            if not is_right(outcome):
                console.print(_wrong(outcome), highlight=False, markup=False)
            elif outcome.others:
                console.print(f"  in addition to {outcome.case}: {outcome.others}", highlight=False, markup=False)
    return outcomes


def controlled(folder: Path, presets: tuple[str, ...], console: Console) -> list[ControlOutcome]:
    """Run all healthy controls, and print those with a false verdict."""
    outcomes = []
    for outcome in healthy_controls(folder, presets, tuple(CONTROLS)):
        outcomes.append(outcome)
        if outcome.said:
            console.print(f"  false: {outcome}", highlight=False, markup=False)
    return outcomes


def _wrong(outcome: Outcome) -> str:
    verdict = outcome.verdict
    said = "nothing"
    if verdict is not None:
        kind = enum_name(store.VerdictKind, verdict.kind)
        said = f"{kind} of {list(verdict.culprits)}: {verdict.message} [{verdict.op} {verdict.seq} of {verdict.group}]"
    judged, case = outcome.judgement, outcome.case
    wrong = [name for name in ("kind", "rank", "call", "activity") if getattr(judged, name) is False]
    phase = case.phase.name.lower() if case.phase else "any phase"
    return (
        f"  wrong {', '.join(wrong)}: {case.fault} of rank {case.rank} in {phase} of {case.layout}, seed {case.seed}: "
        f"{said}; ranks: {outcome.calls}; others: {list(outcome.others)}"
    )


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    layouts = arguments.layout or (QUICK_LAYOUTS if arguments.quick else LAYOUTS)
    faults = arguments.only or (QUICK_FAULTS if arguments.quick else FAULTS)
    cases = arguments.cases or (QUICK_CASES if arguments.quick else CASES)
    plan = corpus(seed=arguments.seed, cases=cases, layouts=layouts, faults=faults)
    presets = tuple(PRESETS) if not (arguments.quick or arguments.only or arguments.layout) else ()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        outcomes = injected(plan, Path(folder), console) if not arguments.controls else []
        controls = controlled(Path(folder), tuple(PRESETS) if arguments.controls else presets, console)
    return score(outcomes, controls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, help=f"number of faults to inject (default: {CASES})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the corpus (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="inject a few cases in one layout, without controls")
    parser.add_argument(
        "--only", action="append", choices=FAULTS, metavar="FAULT", help="inject this fault (repeatable)"
    )
    parser.add_argument(
        "--layout",
        action="append",
        choices=LAYOUTS,
        metavar="LAYOUT",
        help="use this layout (repeatable)",
    )
    parser.add_argument("--controls", action="store_true", help="run only the healthy controls")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json, width=4000 if arguments.json else None)
    result = measure(arguments, console)
    table = Table("", "", title="Verdicts compared with the injected faults")
    for key, value in result.items():
        if not isinstance(value, dict):
            table.add_row(key, str(value))
    console.print(table)
    for line in shortfalls(result):
        console.print(f"goal missed: {line}")
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
