"""Prove the CUDA paths of Holdfast on this machine, part by part, and write docs/gpu.md.

Parts that have passed on this machine are not run again. Without a GPU, this rehearses the parts on the CPU, writes
build/gpu/rehearsal.md, and leaves docs/gpu.md as it is. Exits with 1 if a part failed, with 2 if a setting must change,
and with 3 if the same command continues with the parts that are left.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.page import page
from benchmarks.gpu.parts import PARTS, Part, part_named
from benchmarks.gpu.record import ROOT, Ran, Record, digest_of_sources, load
from benchmarks.gpu.run_part import run_part

PAGE = ROOT / "docs" / "gpu.md"
RESULTS = ROOT / "benchmarks" / "gpu" / "results.json"
FOLDER = ROOT / "build" / "gpu"
PARTS_LEFT = 3
"""Exit code if the time did not suffice, and the same command continues."""
WRONG_SETTING = 2
"""Exit code if the command does nothing, or nothing more, until a setting of it is changed."""


@dataclass(frozen=True)
class Places:
    """Files that the program writes."""

    folder: Path = FOLDER
    results: Path = RESULTS
    page: Path = PAGE


class Program:
    """Runs parts and keeps their record."""

    def __init__(self, machine: Machine, places: Places, *, forget: tuple[Part, ...] = ()) -> None:
        self._machine = machine
        self._places = places
        self._path = places.folder / ("record.json" if machine.has_gpu else "rehearsal.json")
        known = None if forget == PARTS else load(self._path)
        if known is not None and known.machine != machine:
            print(f"{self._path} is of another machine or of other versions: start over", flush=True)
            known = None
        self.record = known or Record(machine)
        for part in forget:
            self.record.parts.pop(part.name, None)

    def run(self, parts: tuple[Part, ...], *, minutes: float = math.inf) -> int:
        """Run the parts that have not passed and may end within ``minutes``; return the exit code."""
        end_s = time.monotonic() + 60 * minutes
        left: list[Part] = []
        for part in parts:
            if self.record.has_passed(part.name):
                print(f"{part.name}: has passed before", flush=True)
            elif time.monotonic() + part.limit_s > end_s:
                left.append(part)
            else:
                self._run(part)
        states = [self.record.parts[part.name].outcome.state for part in parts if part.name in self.record.parts]
        print(f"{states.count('passed')} passed, {states.count('failed')} failed, {states.count('skipped')} skipped")
        # A part is started some time after the command: one that takes all the minutes never fits.
        too_long = [part for part in left if part.limit_s >= 60 * minutes]
        later = [part.name for part in left if part not in too_long]
        if later:
            print(f"not started, because the time did not suffice: {', '.join(later)}: run the same command again")
        if too_long:
            names = ", ".join(f"{part.name} ({_minutes_for(part)} minutes)" for part in too_long)
            need = max(map(_minutes_for, too_long))
            print(f"never fit into --minutes {minutes:g}: {names}: set --minutes {need} or more, or leave it out")
        return 1 if "failed" in states else PARTS_LEFT if later else WRONG_SETTING if too_long else 0

    def _run(self, part: Part) -> None:
        print(f"{part.name}: {part.shows} (at most {part.limit_s:g} s)", flush=True)
        began_s = time.monotonic()
        outcome = run_part(part, self._places.folder / "logs" / f"{part.name}.log")
        took_s = time.monotonic() - began_s
        self.record.parts[part.name] = Ran(outcome, took_s, digest_of_sources())
        reason = f": {outcome.reason}" if outcome.reason else ""
        print(f"{part.name}: {outcome.state} in {took_s:.0f} s{reason}", flush=True)
        self._save()

    def _save(self) -> None:
        """Save after every part: the machine may be taken away at any time."""
        self.record.save(self._path)
        if self._machine.has_gpu:
            self.record.save(self._places.results)
            self._places.page.write_text(page(self.record), encoding="utf-8")
        else:
            (self._places.folder / "rehearsal.md").write_text(page(self.record), encoding="utf-8")


def _minutes_for(part: Part) -> int:
    """Return the smallest whole number of minutes in which the part may end."""
    return int(part.limit_s // 60) + 1


def _minutes(text: str) -> float:
    """Return the value of --minutes. Raises ArgumentTypeError unless it is above 0."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not minutes > 0:  # so that NaN is refused, too
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0: give one, such as 9")
    return minutes


def main(arguments: list[str] | None = None, places: Places | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", help="run this part only; may be repeated")
    parser.add_argument("--fresh", action="store_true", help="run parts again that have passed")
    parser.add_argument(
        "--minutes", type=_minutes, default=math.inf, help="start no part that may not end within these minutes"
    )
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--write-page", action="store_true", help="write docs/gpu.md from the results, and run nothing")
    parsed = parser.parse_args(arguments)
    places = places or Places()
    try:
        if parsed.list:
            print(*(f"{part.name:18}{part.shows}" for part in PARTS), sep="\n")
            return 0
        if parsed.write_page:
            places.page.write_text(page(load(places.results)), encoding="utf-8")
            return 0
        parts = tuple(map(part_named, parsed.part)) if parsed.part else PARTS
        machine = Machine.here()
        program = Program(machine, places, forget=parts if parsed.fresh else ())
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return WRONG_SETTING
    print(f"GPUs: {', '.join(machine.gpus) or 'none, so the parts are rehearsed on the CPU'}", flush=True)
    return program.run(parts, minutes=parsed.minutes)


if __name__ == "__main__":
    sys.exit(main())
