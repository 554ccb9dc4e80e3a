"""Writes or checks a generated file that is committed."""

import sys
from pathlib import Path


def write_or_check(path: Path, text: str, *, check: bool) -> int:
    """Write ``text``, or with ``check`` only compare. Return an exit code: 1 if the file is out of date."""
    if not check:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path.name} is out of date: run {Path(sys.argv[0]).name} without --check", file=sys.stderr)
    return 1
