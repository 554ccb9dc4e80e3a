"""Names the whole runs that a change should be tried with, and that the gate leaves out.

    python -m tests.gate.affected [SINCE]   names them, for what has changed since a commit
    python -m tests.gate.affected --record  notes that all of them have passed at this commit

Without SINCE, it is the commit of the last whole green run. Only the Git tree of that commit is compared, so its number
may change, as it does when commits are rebased.
"""

import argparse
import ast
import datetime
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.tiers import WHOLE_RUNS

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("whole_run.json")
LEFT_IN = ("gate", "slice", "soak")
"""Markers of tests that the gate runs, or that no whole run has."""

EVERYTHING = tuple(f"tests/{name}" for name in WHOLE_RUNS)
WHOLE_RUNS_OF = {
    "base": ("tests/chaos", "tests/multinode"),
    "benchmarks": ("tests/benchmarks", "tests/gpu"),
    "agent": ("tests/chaos", "tests/multinode"),
    "checkpoint": ("tests/chaos", "tests/multinode", "tests/examples"),
    "cli": ("tests/chaos", "tests/multinode", "tests/examples"),
    "daemon": ("tests/chaos", "tests/multinode", "tests/daemon/console"),
    "dashboards": ("tests/chaos",),
    "examples": ("tests/examples",),
    "proto": ("tests/chaos", "tests/multinode"),
    "trainer": ("tests/trainer", "tests/chaos", "tests/examples"),
    "trainer_hooks": EVERYTHING,
    "pyproject.toml": EVERYTHING,
    "constraints.txt": EVERYTHING,
}
"""What has changed -> the folders whose runs go through it. A change of a test concerns that test alone."""


def folders_of(changed: Iterable[str]) -> set[str]:
    """Return the folders and files of tests that the changed paths concern."""
    found: set[str] = set()
    for path in changed:
        first, _, rest = path.partition("/")
        if first != "tests":
            found |= set(WHOLE_RUNS_OF.get(first, ()))
        elif rest.startswith("support/"):
            found |= set(EVERYTHING)
        elif path.startswith(tuple(f"{folder}/" for folder in EVERYTHING)):
            found.add(path if Path(path).name.startswith("test_") else str(Path(path).parent))
    return found


def left_out(folders: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the whole runs below these folders that the gate leaves out, as ``file::test``."""
    files = {file for folder in folders for file in _test_files(root / folder)}
    return [f"{file.relative_to(root)}::{test}" for file in sorted(files) for test in _unmarked_system_tests(file)]


def changed_since(tree: str) -> list[str] | None:
    """Return the paths that differ from a commit or a tree, new files too; None if no repository here has it."""
    try:
        known = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{tree}^{{tree}}")
        changed = _git("diff", "--name-only", known.stdout.strip(), "--")
        new = _git("ls-files", "--others", "--exclude-standard")
    except OSError:  # no git
        return None
    return None if known.returncode else [*changed.stdout.splitlines(), *new.stdout.splitlines()]


def report() -> list[str]:
    """Return what a gate says of the whole runs that it has left out, in lines. It says so if that is not known."""
    try:
        last = json.loads(RECORD.read_text())
        changed = changed_since(str(last["tree"]))
        tests = left_out(EVERYTHING if changed is None else folders_of(changed))
        head = f"last whole green run: commit {str(last['commit'])[:12]} of {last['date']}"
    except (OSError, ValueError, KeyError, TypeError, SyntaxError) as error:
        return [f"the whole runs that were left out are not known ({error!r}): see {RECORD.relative_to(ROOT)}"]
    return [
        head,
        f"not run here, and concerned by what has changed since: {len(tests)}; run them with: make test-system",
        *(f"  {test}" for test in tests),
    ]


def record() -> None:
    """Note that all whole runs have passed at this commit. Work that is not committed is not noted."""
    status = _git("status", "--porcelain")
    if status.returncode or status.stdout:
        print("not noted as a whole green run: there is no commit that holds exactly these files")
        return
    commit, tree = _git("rev-parse", "HEAD", "HEAD^{tree}").stdout.split()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    RECORD.write_text(json.dumps({"commit": commit, "tree": tree, "date": date}, indent=2) + "\n")
    print(f"noted in {RECORD.relative_to(ROOT)}: commit it")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("since", nargs="?", help="a commit")
    what.add_argument("--record", action="store_true", help="note that all have passed here (make test-system does)")
    options = parser.parse_args()
    if options.record:
        record()
        return 0
    if options.since is None:
        print("\n".join(report()))
        return 0
    changed = changed_since(options.since)
    if changed is None:
        print(f"{options.since}: no commit of a repository here: name another one", file=sys.stderr)
        return 2
    for test in left_out(folders_of(changed)):
        print(test)
    return 0


def _test_files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from place.rglob("test_*.py")
    elif place.is_file():
        yield place


def _unmarked_system_tests(file: Path) -> Iterator[str]:
    module = ast.parse(file.read_text())
    everywhere = " ".join(ast.unparse(node) for node in module.body if "pytestmark" in ast.unparse(node)[:10])
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            markers = everywhere + " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
            if "mark.system" in markers and not any(f"mark.{name}" in markers for name in LEFT_IN):
                yield node.name


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
