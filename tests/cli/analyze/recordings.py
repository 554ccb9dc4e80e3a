"""Cases of real hangs that people published, each with the diagnosis that its evidence allows.

`recordings/README.md` explains the folders, and `cases()` reads them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "recordings"

# The words for a diagnosis. A case has one, and lists in `also` others that its evidence supports as well.
KINDS = frozenset(
    {
        "missing_rank",
        "mismatched_call",
        "opposite_order",
        "gpu_or_network",
        "inside_call",
        "program",
        "not_recorded",
        "no_hang",
        "unknown",
    }
)

# Where the documents of a case come from, best first.
EVIDENCE = frozenset({"recorder", "tool_output", "log_lines", "report", "program", "synthetic"})

_RANK = re.compile(r"rank-(\d+)\.(?:json|txt|log)")
_OF_RECORDING = ("source", "shows", "evidence", "derived", "cause")


@dataclass(frozen=True)
class Expectation:
    """The diagnosis that is right and honest for one recording.

    Attributes:
        kind: The best word of `KINDS`.
        also: Other words of `KINDS` that are as honest.
        culprits: Ranks that an answer may name, whatever word of `kind` or `also` it uses. Nobody else may be named.
        undecided: The sides of a mismatch or a cycle, each with its ranks. None of them may be called faulty.
        group: Description or name of the group that hangs, as in `process_group`. Empty if not known.
        op: Operation without its backend's prefix, such as `all_reduce`. Empty if not known or different on the sides.
        seq: `collective_seq_id` of the call that hangs, or None if not known.
        stacks_decide: Whether the diagnosis needs the stacks. Without them it is `unknown`, and nobody is named.
        why: The reasons.
    """

    kind: str
    also: tuple[str, ...]
    culprits: tuple[int, ...]
    undecided: tuple[tuple[int, ...], ...]
    group: str
    op: str
    seq: int | None
    stacks_decide: bool
    why: str

    @property
    def kinds(self) -> frozenset[str]:
        """All words of a diagnosis that are right."""
        return frozenset({self.kind, *self.also})


@dataclass(frozen=True)
class Recording:
    """One recording: its folder, where it comes from, and the expectation.

    Attributes:
        name: Name of the folder.
        folder: The folder itself.
        source: Address of the publication.
        shows: One sentence on the contents.
        evidence: A word of `EVIDENCE`.
        derived: Facts in the files that the source does not show.
        cause: The true cause as far as the publication found it.
        expectation: The right diagnosis.
    """

    name: str
    folder: Path
    source: str
    shows: str
    evidence: str
    derived: list[str]
    cause: str
    expectation: Expectation

    @property
    def documents(self) -> dict[int, Path]:
        """The recorder documents by rank."""
        return _by_rank(self.folder, "json")

    @property
    def stacks(self) -> dict[int, Path]:
        """The stacks by rank, in the style of `py-spy dump`."""
        return _by_rank(self.folder / "stacks", "txt")

    @property
    def logs(self) -> dict[int, Path]:
        """The log lines by rank."""
        return _by_rank(self.folder / "logs", "log")


def cases() -> Iterator[tuple[str, Path, Expectation]]:
    """Yield the name, the folder and the expectation of each recording that has documents, in the order of names."""
    for recording in recordings():
        if recording.documents:
            yield recording.name, recording.folder, recording.expectation


def recordings() -> Iterator[Recording]:
    """Yield all recordings, also those that have log lines or stacks only."""
    for path in sorted(FOLDER.glob("*/case.toml")):
        yield read_recording(path.parent)


def read_recording(folder: Path) -> Recording:
    """Read one folder. Raises TypeError if `case.toml` lacks a key, or has one too many."""
    values = tomllib.loads((folder / "case.toml").read_text())
    values |= {"also": tuple(values["also"]), "culprits": tuple(values["culprits"])}
    values |= {
        "undecided": tuple(map(tuple, values["undecided"])),
        "seq": None if values["seq"] == -1 else values["seq"],
    }
    of_recording = {key: values.pop(key) for key in _OF_RECORDING}
    return Recording(name=folder.name, folder=folder, expectation=Expectation(**values), **of_recording)


def _by_rank(folder: Path, suffix: str) -> dict[int, Path]:
    found = ((_RANK.fullmatch(path.name), path) for path in folder.glob(f"rank-*.{suffix}"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))
