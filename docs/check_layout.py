"""Measures the source and checks the rules of its layout (CONTRIBUTING.md): run by `make lint`.

    python docs/check_layout.py [--list] [--json]

Prints lines, files and what breaks a rule, and exits 1 if more of it breaks a rule than LIMITS allows. A limit is only
ever lowered. `--list` names each file, folder, name and circle; `--json` prints the numbers as one object.

Lines of code are those that hold more than a comment or a docstring. Generated files do not count. The length of a file
is that of all its lines, as an editor shows it. A short file breaks a rule if it has a single user: it belongs there.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = {
    "base": "holdfast_base",
    "proto": "holdfast_proto",
    "checkpoint": "holdfast_checkpoint",
    "trainer_hooks": "holdfast_hooks",
    "agent": "holdfast_agent",
    "daemon": "holdfast_daemon",
    "trainer": "holdfast_trainer",
    "cli": "holdfast_cli",
}

SHORT_FILE = 40
LONG_FILE = 300
FULL_FOLDER = 15

# What is still to be repaired. Zero is the rule.
LIMITS = {
    "short_files": 0,
    "long_files": 20,
    "full_folders": 0,
    "circles": 0,
    "classes_of_one_name": 0,
    "files_of_one_name": 0,
}

# Names that Python or its readers expect in many places.
_COMMON_STEMS = {"__init__", "__main__", "main"}

# Short files that must be files of their own: the warm parent imports the first by its name, the second is a program.
_STAND_ALONE = {"preload", "die_with_parent"}


@dataclass(frozen=True)
class SourceFile:
    """One file of Python: `path` from the root, `lines` in all, `code` and `comments` among them."""

    path: Path
    tree: ast.Module
    lines: int
    code: int
    comments: int

    @property
    def module(self) -> str:
        """The dotted name under which others import it, for a file of a package."""
        parts = self.path.with_suffix("").parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_file(path: Path) -> SourceFile:
    """Reads and counts one file."""
    text = path.read_text()
    tree = ast.parse(text)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    comments: set[int] = set()
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docstrings
    return SourceFile(path.relative_to(ROOT), tree, text.count("\n"), len(code), len(comments))


def read_folder(folder: str) -> list[SourceFile]:
    """Reads each file of a top-level folder that a person wrote."""
    return [read_file(path) for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]


def imports(file: SourceFile, modules: set[str]) -> Iterator[str]:
    """Yields the modules of ours that `file` imports, wherever in the file."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules:
                    yield inner
                elif node.module in modules:
                    yield node.module


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The largest groups of modules in which each imports each, over others of the group (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def used_twice(names: dict[str, list[str]]) -> list[str]:
    """One line for each name that stands for more than one thing."""
    return [f"{name}: {', '.join(places)}" for name, places in sorted(names.items()) if len(places) > 1]


def broken_rules(files: list[SourceFile]) -> dict[str, list[str]]:
    """What breaks each rule, one line each."""
    modules = {file.module for file in files}
    folders: dict[str, int] = defaultdict(int)
    classes: dict[str, list[str]] = defaultdict(list)
    stems: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[str(file.path.parent)] += file.path.stem != "__init__"
        if file.path.stem not in _COMMON_STEMS:
            stems[file.path.stem].append(str(file.path))
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(file.path))
    graph = {file.module: set(imports(file, modules)) - {file.module} for file in files}
    users = Counter(target for targets in graph.values() for target in targets)
    own = [file for file in files if file.path.stem not in _COMMON_STEMS]
    short = [file for file in own if file.lines < SHORT_FILE and file.path.stem not in _STAND_ALONE]
    return {
        "short_files": [f"{file.path}: {file.lines}" for file in short if users[file.module] < 2],
        "long_files": [f"{file.path}: {file.lines}" for file in own if file.lines > LONG_FILE],
        "full_folders": [f"{name}: {count}" for name, count in folders.items() if count > FULL_FOLDER],
        "circles": [" - ".join(circle) for circle in circles(graph)],
        "classes_of_one_name": used_twice(classes),
        "files_of_one_name": used_twice(stems),
    }


def sizes(name: str, files: list[SourceFile]) -> dict[str, int]:
    """The counts of some files, under keys that begin with `name`."""
    return {
        f"{name}_files": len(files),
        f"{name}_code_lines": sum(file.code for file in files),
        f"{name}_comment_lines": sum(file.comments for file in files),
    }


def main(arguments: list[str]) -> int:
    """Runs the command. Returns the exit status."""
    files = [file for folder in PACKAGES for file in read_folder(folder)]
    broken = broken_rules(files)
    numbers = sizes("source", files) | sizes("tests", read_folder("tests"))
    numbers |= {rule: len(lines) for rule, lines in broken.items()}
    if "--json" in arguments:
        print(json.dumps(numbers))
        return 0
    for name, number in numbers.items():
        print(f"{name.replace('_', ' '):26} {number:7,}" + (f" (at most {LIMITS[name]})" if name in LIMITS else ""))
        if "--list" in arguments:
            print("".join(f"    {line}\n" for line in broken.get(name, [])), end="")
    over = [name for name in LIMITS if numbers[name] > LIMITS[name]]
    for name in over:
        print(f"{name.replace('_', ' ')}: {numbers[name]}, more than {LIMITS[name]}: see --list and CONTRIBUTING.md")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
