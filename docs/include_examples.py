"""Copies the examples into the pages that show them.

    python docs/include_examples.py [--check]

A page shows an example in the block of code below ``<!-- examples/ddp.py -->``: all of it but the docstring. Below
``<!-- examples/own_state.py: state -->`` it shows the part between the comments ``# [state]`` and ``# [end]``. With
``--check`` nothing is written, and the exit code is 1 if a page shows something else than the example.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_SHOWN = re.compile(
    r"(?P<head><!-- (?P<file>examples/\w+\.py)(?:: (?P<part>\w+))? -->\n\n?```python\n)(?P<code>.*?)```", re.S
)
_MARKER = re.compile(r" *# \[\w+\]\n")


def pages() -> list[Path]:
    """Return all pages: those of docs/ and of the top level."""
    return [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))]


def shown(source: str, part: str | None) -> str:
    """Return what a page shows of an example. Raises ValueError if the example has no such part, or several."""
    if part is None:
        return _MARKER.sub("", source.split('"""\n\n', 1)[1])
    parts = re.findall(rf"^ *# \[{part}\]\n(.*?)^ *# \[end\]\n", source, re.S | re.M)
    if len(parts) != 1:
        raise ValueError(f"[{part}] is there {len(parts)} times, not once")
    return textwrap.dedent(parts[0]).rstrip("\n") + "\n"


def included(page: str) -> str:
    """Return a page with its blocks of code as the examples are now."""

    def block(match: re.Match[str]) -> str:
        source = (ROOT / match["file"]).read_text(encoding="utf-8")
        return f"{match['head']}{shown(source, match['part'])}```"

    return _SHOWN.sub(block, page)


def main(arguments: list[str]) -> int:
    """Write the pages that differ, or with ``--check`` name them. Return the exit code."""
    check = arguments == ["--check"]
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    stale = {page: new for page, text in texts.items() if (new := included(text)) != text}
    for page, new in stale.items():
        if check:
            print(
                f"{page.relative_to(ROOT)} shows an older example: run python docs/include_examples.py", file=sys.stderr
            )
        else:
            page.write_text(new, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
