"""Finds the main thread in a rank's stacks: text of py-spy, of faulthandler, of torch's worker server, of Holdfast."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = re.compile(r"^\s*(?:Current thread|[Tt]hread) (?P<number>(?:0[xX])?[0-9a-fA-F]+)\b.*")
_PROCESS = re.compile(r"^Process (?P<pid>\d+):")
_PY_SPY_FRAME = re.compile(r"^\s+(?P<name>\S.*?) \((?P<file>[^():]+)(?::\d+)?\)\s*$")
_FILE_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+,? in (?P<name>\S+)')
_OF_FAULTHANDLER = "(most recent call first)"
_CUT = "..."
"""Line at which faulthandler leaves out threads after the first hundred. It lists the main thread last."""
_LIBRARY = re.compile(r"/(site|dist)-packages/|(^|/)lib/python3|(^|/)torch/|^<|\.so\b|\?\?")
_MAIN_NAME = re.compile(r"\bmain\b", re.IGNORECASE)
_GIL = re.compile(r"\bgil\b", re.IGNORECASE)


@dataclass(frozen=True)
class ThreadStack:
    """One thread of a process."""

    header: str
    frames: tuple[tuple[str, str], ...]
    """Function and file of each frame, the innermost first."""

    @property
    def own_frame(self) -> tuple[str, str]:
        """Function and file of the innermost frame that is in no library; without any, those of the innermost one."""
        return next((frame for frame in self.frames if not _LIBRARY.search(frame[1])), self.frames[0])

    @property
    def holds_gil(self) -> bool:
        """Whether it is said to hold the interpreter's lock."""
        return bool(_GIL.search(self.header.partition('"')[0]))

    @property
    def has_native_frames(self) -> bool:
        """Whether frames of compiled code are shown: then Python frames hide no wait."""
        return any(not file.endswith(".py") and not file.startswith("<") for _, file in self.frames)


def main_thread(text: str) -> ThreadStack | None:
    """Return the main thread; None if the text shows no frames of it."""
    threads = list(_threads(text))
    thread = _main_of(threads, text.splitlines()) if threads else None
    return thread if thread is not None and thread.frames else None


def _main_of(threads: list[ThreadStack], lines: list[str]) -> ThreadStack | None:
    named = [thread for thread in threads if "MainThread" in thread.header]
    if named:
        return named[0]
    if any(_OF_FAULTHANDLER in thread.header for thread in threads):
        # The newest thread comes first. "Current" is the one that wrote the text, which may be any.
        return None if _CUT in lines else threads[-1]
    pids = {found["pid"] for line in lines if (found := _PROCESS.match(line))}
    first = [thread for thread in threads if _number_of(thread.header) in pids]
    first += [thread for thread in threads if _MAIN_NAME.search(thread.header)]
    return (first or threads)[0]


def _number_of(header: str) -> str:
    found = _HEADER.match(header)
    return found["number"] if found is not None else ""


def _threads(text: str) -> Iterator[ThreadStack]:
    header: str | None = None
    frames: list[tuple[str, str]] = []
    for line in text.splitlines():
        if _HEADER.match(line):
            if frames or header is not None:
                yield ThreadStack(header or "", tuple(frames))
            header, frames = line, []
            continue
        frame = _PY_SPY_FRAME.match(line) or _FILE_FRAME.match(line)
        if frame is not None:
            frames.append((frame["name"], frame["file"]))
    if frames or header is not None:
        yield ThreadStack(header or "", tuple(frames))
