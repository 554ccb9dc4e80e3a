"""Reads why C++ aborted a rank of another launcher, if the rank's stderr is a file.

The hooks keep the last words of Python. Those of C++ go to stderr alone. That is the launcher's and stays as it is:
what went to a terminal or a pipe cannot be read again. In batch jobs it is a file, which other ranks may share.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_TAIL_BYTES = 1 << 16
"""Other ranks may write their tracebacks to the same file at the same moment."""
_ABORT = re.compile(r"^terminate called after throwing an instance of '[^'\n]+'\n +what\(\): .*", re.MULTILINE)


@dataclass(frozen=True)
class OutputFile:
    """The file that is the stderr of a process."""

    path: Path
    start: int
    """Its size when the process attached: what was there before says nothing about it."""

    @classmethod
    def of(cls, pid: int) -> "OutputFile | None":
        """Return the file of a process; None if its stderr is none that this process can read by a name."""
        link = Path(f"/proc/{pid}/fd/2")
        try:
            path = link.readlink()
            if not path.is_file() or not path.samefile(link):  # its name may mean another file here, or none any more
                return None
            return cls(path, path.stat().st_size)
        except OSError:
            return None

    def abort_message(self) -> str:
        """Return what C++ has written about an abort; "" if that is nothing, or was written about several."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(self.start, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        found = _ABORT.findall(text)
        return found[0] if len(found) == 1 else ""
