"""Finds the lines of tables and keys in a TOML file. tomllib and tomlkit keep no numbers of lines."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NAMES = r"([\w-]+(?:\s*\.\s*[\w-]+)?)"
_TABLE_LINE = re.compile(rf"\s*\[\[?\s*{_NAMES}\s*\]")
_KEY_LINE = re.compile(rf"\s*{_NAMES}\s*=")


@dataclass(frozen=True)
class Places:
    """The lines of a file's tables and keys, as far as they show without parsing TOML."""

    path: Path
    lines: Mapping[str, int]
    """TABLE or TABLE.KEY -> line. The second table of a name is TABLE#1, the third TABLE#2."""

    def of(self, *names: str) -> str:
        """Return PATH:LINE of the first of these tables or keys that is found, else PATH."""
        return next((f"{self.path}:{self.lines[name]}" for name in names if name in self.lines), str(self.path))


def find_places(text: str, path: Path) -> Places:
    """Return the places in a file with this text."""
    found: dict[str, int] = {}
    seen: Counter[str] = Counter()
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _TABLE_LINE.match(line):
            name = "".join(heading[1].split())
            table = nth_table(name, seen[name])
            seen[name] += 1
            prefix = f"{table}."
            found.setdefault(table, number)
        elif key := _KEY_LINE.match(line):
            found.setdefault(prefix + "".join(key[1].split()), number)
    return Places(path, found)


def nth_table(table: str, number: int) -> str:
    """Return the name of a table by which Places knows it. ``number``: of tables with that name, from 0."""
    return f"{table}#{number}" if number else table
