"""Finds the exception that ended a process in its last words: the end of a traceback, or of stderr.

Much else is printed around it: progress bars, summaries of trackers, warnings, errors of exit handlers and of other
threads, frames of C++. So an exception counts by its traceback, by the ``what()`` of an abort, or by Python's own words
about a fatal signal. Only text without any of these is judged by its last line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_FRAME = re.compile(r'(?:  |> )File "(?P<path>[^"]+)"')
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt)(?::|$)")
_NAME_ALONE = re.compile(r"[\w.]+:")
_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<name>[A-Za-z_]\w*)(?::|$)")
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception,")
_ORIGINAL = "Original Traceback (most recent call last):"
_ASIDE = re.compile(r"(?:Exception (?:ignored )?in|Error in (?:atexit|sys\.)|in thread) |--- Logging error ---")
"""Begins what is printed about an exception that ends no process."""
_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<name>[^']+)'")
_WHAT = "what():"
_INNERMOST_FIRST = "(most recent call first):"
"""Heads the stacks of a fatal signal, in which no exception follows the frames."""
_SHORTAGE = re.compile(
    r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing|Too many open files"
    r"|Cannot allocate memory|out of memory",
    re.IGNORECASE,
)
"""An error that explains those which follow from it: a file that is cut off, a worker that did not start."""
_FATAL = "Fatal Python error:"


@dataclass(frozen=True)
class Raised:
    """An exception as its traceback, or an abort, shows it."""

    message: str
    """Its name and text, up to the first empty line."""
    path: str = ""
    """File of the frame that raised it; empty: unknown."""
    thrown: str = ""
    """C++ type, if an abort shows it."""
    is_aside: bool = False
    """Whether the process continued after it, for it ended another thread or an exit handler."""
    replaces: bool = False
    """Whether it is the original of the one before: a worker's, raised again by its parent."""
    follows: bool = False
    """Whether it was raised because of the one before, or while that was handled."""

    @property
    def name(self) -> str:
        """Name of its class without the module; empty if it is unknown."""
        found = _NAME.match(self.message)
        return found["name"] if found else ""

    @property
    def line(self) -> str:
        """Its first line. A text that begins below the exception's name is moved up to it."""
        first, _, rest = self.message.partition("\n")
        below = rest.partition("\n")[0].strip()
        return f"{first} {below}".rstrip() if _NAME_ALONE.fullmatch(first) else first


def last_chain(last_words: str) -> list[Raised]:
    """Return the exception that ended the process, after those that led to it; empty if no exception is shown."""
    lines = _lines(last_words)
    found = [*_tracebacks(lines), *_aborts(lines)]
    chain: list[Raised] = []
    for one in [each for each in found if not each.is_aside] or found:
        if one.replaces and chain:
            chain[-1] = one
        elif one.follows:
            chain.append(one)
        elif not one.thrown or not chain:  # what aborts a process that has already failed is a consequence
            chain = [one]
    return chain


def exception_line(last_words: str) -> str:
    """Return the line that names the last exception, such as "ValueError: bad sample"; the last line without one.

    If a shortage led to that exception, it is the line of the shortage.
    """
    chain = last_chain(last_words)
    if chain:
        return next((one for one in chain if _SHORTAGE.search(one.message)), chain[-1]).line
    return next((line.strip() for line in reversed(_lines(last_words)) if line.strip()), "")


def names_an_exception(last_words: str) -> bool:
    """Return whether the line of :func:`exception_line` names an exception: after a traceback, or by its own name."""
    return bool(last_chain(last_words) or _NAMED.match(exception_line(last_words)))


def _lines(last_words: str) -> list[str]:
    return _RANK_PREFIX.sub("", last_words).splitlines()


def _tracebacks(lines: list[str]) -> Iterator[Raised]:
    """Find the lines at the margin that follow the frames of a traceback, whose start may be cut off.

    A warning also has an indented line, with the source code. After that, whatever the script prints is at the margin.
    """
    path, heading, connection = "", "", ""
    for i, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame:
            path = "" if heading.endswith(_INNERMOST_FIRST) else frame["path"]
        elif line and not line[0].isspace() and not line.startswith(">"):
            is_after_indented = i > 0 and lines[i - 1][:1].isspace()
            if path or (is_after_indented and _NAMED.match(line)):
                yield Raised(
                    _until_empty(lines[i:]),
                    path,
                    is_aside=_ASIDE.match(heading) is not None,
                    replaces=connection == _ORIGINAL,
                    follows=connection.startswith(_CHAINED),
                )
                heading, connection = "", ""
            path = ""
            if line == _ORIGINAL or line.startswith(_CHAINED):
                connection = line
            elif not line.startswith("Traceback "):
                heading = line


def _aborts(lines: list[str]) -> Iterator[Raised]:
    """Find what C++ and Python write when they abort the process."""
    for i, line in enumerate(lines):
        thrown = _THROWN.match(line)
        below = lines[i + 1].strip() if i + 1 < len(lines) else ""
        if thrown and below.startswith(_WHAT):
            yield Raised(below.removeprefix(_WHAT).strip(), thrown=thrown["name"])
        elif thrown or line.startswith(_FATAL):
            yield Raised(line.strip(), thrown=thrown["name"] if thrown else _FATAL)


def _until_empty(lines: list[str]) -> str:
    end = lines.index("") if "" in lines else len(lines)
    return "\n".join(line.rstrip() for line in lines[:end])
