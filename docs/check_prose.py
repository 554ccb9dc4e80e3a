"""Checks that the pages of docs/ and the README read easily: short sentences, lines that fit an editor.

    python docs/check_prose.py [PAGE ...]

Exits 1 with one line for each page whose sentences have more than 14 words on average, each sentence of more than 30
words, and each line of more than 120 columns. Code blocks are not prose. Cells of tables count for the longest sentence
but not for the average, which they would flatter. Tables and links may be wider than 120 columns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

MOST_WORDS_ON_AVERAGE = 14
MOST_WORDS = 30
MOST_COLUMNS = 120

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"^\s*(```|~~~)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# A span of code is one word, however long the command in it is.
_CODE = re.compile(r"`[^`]+`")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[)\"'*]*\s+")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.")
_WORD = re.compile(r"[^\W_]")


def cells(text: str) -> Iterator[str]:
    """Yields each cell of the page's tables."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield from (cell.strip() for cell in line.strip("|").split("|"))


def paragraphs(text: str) -> Iterator[str]:
    """Yields each paragraph and list item of a page as one line of plain text, without its code blocks."""
    collected: list[str] = []
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        starts_anew = fenced or not line.strip() or line.startswith(("#", "|", "<")) or _ITEM.match(line)
        if starts_anew and collected:
            yield " ".join(collected)
            collected = []
        if fenced or _FENCE.match(line) or line.startswith(("#", "<")):
            continue
        if line.strip() and not line.startswith("|"):
            collected.append(_ITEM.sub("", line).strip())
    if collected:
        yield " ".join(collected)


def sentences(passages: Iterable[str]) -> Iterator[list[str]]:
    """Yields the words of each sentence; fragments of fewer than three words (labels, figures) are left out."""
    for paragraph in passages:
        plain = _ABBREVIATION.sub(r"\1", _LINK.sub(r"\1", _CODE.sub("code", paragraph)))
        for sentence in _END_OF_SENTENCE.split(plain):
            words = [word for word in sentence.split() if _WORD.search(word)]
            if len(words) > 2:
                yield words


def wide_lines(text: str) -> Iterator[int]:
    """Yields the numbers of prose and code lines that are too wide; tables and lines with a link may be."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MOST_COLUMNS and not line.startswith("|") and not _LINK.search(line) and "://" not in line:
            yield number


def complaints(name: str, text: str) -> Iterator[str]:
    """Yields one line for each rule that a page breaks."""
    found = list(sentences(paragraphs(text)))
    for words in [*found, *sentences(cells(text))]:
        if len(words) > MOST_WORDS:
            yield f"{name}: {len(words)} words in one sentence, {MOST_WORDS} allowed: {' '.join(words[:9])} ..."
    average = sum(map(len, found)) / max(1, len(found))
    if average > MOST_WORDS_ON_AVERAGE:
        yield f"{name}: {average:.1f} words a sentence on average, {MOST_WORDS_ON_AVERAGE} allowed"
    for number in wide_lines(text):
        yield f"{name}:{number}: wider than {MOST_COLUMNS} columns"


def main(arguments: list[str]) -> int:
    """Prints what is wrong with the given pages, or with all of them; returns the exit code."""
    pages = [Path(argument) for argument in arguments] or [*sorted((ROOT / "docs").glob("*.md")), *ROOT.glob("*.md")]
    found = [complaint for page in pages for complaint in complaints(page.name, page.read_text(encoding="utf-8"))]
    print("\n".join(found) or f"{len(pages)} pages read easily")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
