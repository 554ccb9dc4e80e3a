"""Parses the Python stacks that torch's worker server writes, in the form of Python's faulthandler."""

import re

from holdfast_agent.evidence.stack_dump import Frame, Thread

_HEAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(?P<name>.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')


def parse(text: str, pid: int) -> tuple[Thread, ...]:
    """Return the threads that have Python frames. Raises ValueError if there are none.

    The oldest thread comes last: it is the main thread, which gets number ``pid``. If the text was cut after the first
    hundred threads, no thread gets it. The text does not say which thread runs or owns the interpreter's lock, so none
    is shown to.
    """
    found: list[tuple[str, list[Frame]]] = []
    is_cut = False
    for line in text.splitlines():
        head, frame = _HEAD.fullmatch(line), _FRAME.fullmatch(line)
        if head is not None:
            found.append((head["name"] or "", []))
        elif frame is not None and found:
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            found[-1][1].append(Frame(frame["function"], frame["file"], number))
        is_cut = line == "..."
    if not any(frames for _, frames in found):
        raise ValueError("no stack of a Python thread")
    main = len(found) - 1 if not is_cut else -1
    return tuple(
        Thread(pid if index == main else None, name, active=False, owns_gil=False, frames=tuple(frames))
        for index, (name, frames) in enumerate(found)
        if frames
    )
