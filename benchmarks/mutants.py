"""Change the source in many small ways, one at a time, and count the changes that no test notices.

    python benchmarks/mutants.py [--count 300] [--seed 0] [--tree FOLDER] [--list] [--json]

One run of the fast tests notes which test runs which line. Then each change is tried against the tests that run its
line, those first that run the fewest lines. A change that no test runs counts as unnoticed. ``--tree`` measures another
checkout with the same seed: a function that has moved is changed in the same way there, so that two states of the tests
can be compared. It takes about an hour on two cores.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import coverage
from coverage import CoverageData

from benchmarks.test_strength import coverage_map
from benchmarks.test_strength.mutations import Mutation, mutations_of

ROOT = Path(__file__).resolve().parent.parent
FAST = "not system and not soak and not frameworks and not gpu"
MOST_TESTS = 60
"""Tests that are tried for one change."""
PATIENCE_S = 120.0
"""After that a change counts as noticed: it has made a test hang."""
_FAILED = (1, 2, 3, 4)
"""Exit codes of pytest: a test failed, or the tests could not even be collected."""


@dataclass(frozen=True)
class Outcome:
    """How a change fared: ``killed``, ``survived`` or ``uncovered``."""

    what: str
    file: str
    line: int
    result: str


def main() -> int:
    """Run the command. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="changes to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to measure (default: this one)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true", help="print every change that no test noticed")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        trees = [copy_of(arguments.tree, Path(folder) / f"tree{number}") for number in range(arguments.workers)]
        tests_of, covered_ratio = map_lines(trees[0], Path(folder), arguments.workers)
        chosen = choose(trees[0], arguments.seed, arguments.count)
        outcomes = try_all(chosen, trees, tests_of)
    counts = Counter(one.result for one in outcomes)
    if arguments.list:
        for one in sorted(outcomes, key=lambda one: (one.file, one.line)):
            if one.result != "killed":
                print(f"{one.file}:{one.line}: {one.result}: {one.what}")
    print(
        f"{counts['killed']} of {len(outcomes)} changes noticed, {counts['uncovered']} in lines that no fast test runs"
    )
    print(f"statements that a fast test runs: {covered_ratio:.2%}")
    if arguments.json:
        unnoticed = [asdict(one) for one in outcomes if one.result != "killed"]
        print(json.dumps({"changes": len(outcomes), **counts, "coverage_ratio": covered_ratio, "unnoticed": unnoticed}))
    return 0


def copy_of(tree: Path, target: Path) -> Path:
    """Copy what git knows of a checkout, and return the copy."""
    listed = subprocess.run(["git", "-C", str(tree), "ls-files", "-z"], check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (tree / name).is_file():
            shutil.copy2(tree / name, target / name)
    return target


def sources_of(tree: Path) -> list[str]:
    """Return the folders of source of a checkout."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text())
    return list(settings["tool"]["hatch"]["build"]["dev-mode-dirs"])


def environment(tree: Path, **more: str) -> dict[str, str]:
    """Return the variables with which Python imports the source of ``tree`` and of no installation."""
    paths = [str(tree), *(str(tree / folder) for folder in sources_of(tree))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", **more}


def map_lines(tree: Path, folder: Path, workers: int) -> tuple[dict[tuple[str, int], list[str]], float]:
    """Run the fast tests; return file and line -> tests, most specific first, and the share of statements that ran."""
    plugin = Path(coverage_map.__file__)
    variables = environment(
        tree,
        **{
            coverage_map.FOLDER: str(folder),
            coverage_map.SOURCES: os.pathsep.join(str(tree / name) for name in sources_of(tree)),
        },
    )
    variables["PYTHONPATH"] += os.pathsep + str(plugin.parent)
    command = [sys.executable, "-m", "pytest", "-q", "-m", FAST, "-p", plugin.stem, "-n", str(workers)]
    subprocess.run([*command, "-p", "no:cacheprovider"], cwd=tree, env=variables, check=False, stdout=sys.stderr)
    data = CoverageData(str(folder / "all"))
    for path in folder.glob("lines.*"):
        part = CoverageData(str(path))
        part.read()
        data.update(part)
    tests_of: dict[tuple[str, int], list[str]] = {}
    sizes: Counter[str] = Counter()
    for file in data.measured_files():
        name = str(Path(file).relative_to(tree))
        for line, tests in data.contexts_by_lineno(file).items():
            tests_of[name, line] = [test for test in tests if test]
            sizes.update(tests_of[name, line])
    for tests in tests_of.values():
        tests.sort(key=lambda test: (sizes[test], test))
    data.write()
    return tests_of, coverage_ratio(tree, folder / "all")


def coverage_ratio(tree: Path, data: Path) -> float:
    """Return the share of the statements of the source that ran, by a file of coverage data."""
    measured = coverage.Coverage(data_file=str(data), config_file=False)
    measured.load()
    found = [measured.analysis2(str(path)) for path in source_files(tree)]
    return 1.0 - sum(len(missing) for *_, missing, _ in found) / sum(len(statements) for _, statements, *_ in found)


def source_files(tree: Path) -> list[Path]:
    """Return the files of source that people write."""
    every = (path for name in sources_of(tree) for path in (tree / name).rglob("*.py"))
    return sorted(path for path in every if not path.match("*_pb2*.py"))


def choose(tree: Path, seed: int, count: int) -> list[Mutation]:
    """Return the changes with the smallest keys: the same ones wherever their functions are."""
    files = source_files(tree)
    every = (mutation for file in files for mutation in mutations_of(tree, file.relative_to(tree), seed))
    return sorted(every, key=lambda mutation: mutation.key)[:count]


def try_all(chosen: list[Mutation], trees: list[Path], tests_of: dict[tuple[str, int], list[str]]) -> list[Outcome]:
    """Try each change, as many at a time as there are copies of the source."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def attempt(mutation: Mutation) -> Outcome:
        tests = tests_of.get((str(mutation.file), mutation.line), [])[:MOST_TESTS]
        tree = free.get()
        try:
            result = _result(mutation, tree, tests) if tests else "uncovered"
        finally:
            free.put(tree)
        print(f"{result:10}{mutation.file}:{mutation.line} {mutation.what}", file=sys.stderr, flush=True)
        return Outcome(mutation.what, str(mutation.file), mutation.line, result)

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(attempt, chosen))


def _result(mutation: Mutation, tree: Path, tests: list[str]) -> str:
    file = tree / mutation.file
    source = file.read_text()
    file.write_text(mutation.applied(source))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    try:
        ended = subprocess.run(
            command, cwd=tree, env=environment(tree), timeout=PATIENCE_S, check=False, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        file.write_text(source)
    return "killed" if ended.returncode in _FAILED else "survived"


if __name__ == "__main__":
    sys.exit(main())
