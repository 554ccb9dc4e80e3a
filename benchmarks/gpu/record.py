"""What has been run so far, on which machine and with which sources: one JSON file, replaced as a whole."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.outcome import Outcome
from holdfast_checkpoint.format.durable import write_file

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = (
    "base",
    "proto",
    "checkpoint",
    "trainer_hooks",
    "agent",
    "daemon",
    "trainer",
    "cli",
    "benchmarks/gpu",
    "tests/gpu",
)


@dataclass(frozen=True)
class Ran:
    """One part that has run."""

    outcome: Outcome
    took_s: float
    sources: str
    """Digest of the sources that it ran with."""


@dataclass
class Record:
    """All parts that have run on one machine."""

    machine: Machine
    parts: dict[str, Ran] = field(default_factory=dict)

    def has_passed(self, name: str) -> bool:
        """Whether a part needs no second run."""
        ran = self.parts.get(name)
        return ran is not None and ran.outcome.state == "passed"

    def save(self, path: Path) -> None:
        """Replace the file."""
        plain = {
            "machine": asdict(self.machine),
            "parts": {
                name: {"outcome": ran.outcome.to_json(), "took_s": round(ran.took_s, 1), "sources": ran.sources}
                for name, ran in self.parts.items()
            },
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(plain, indent=1).encode() + b"\n")


def load(path: Path) -> Record | None:
    """Return the record in a file, or None if there is no file. Raises ValueError if it is no record."""
    try:
        plain: Any = json.loads(path.read_text())
        machine = plain["machine"]
        return Record(
            Machine(tuple(machine["gpus"]), machine["driver"], machine["versions"]),
            {
                name: Ran(Outcome.from_json(ran["outcome"]), float(ran["took_s"]), str(ran["sources"]))
                for name, ran in plain["parts"].items()
            },
        )
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no record of parts ({error}): delete it, or start over with FRESH=1") from None


def digest_of_sources(root: Path = ROOT) -> str:
    """Return 12 characters that change with every change of a package or of these tests."""
    digest = hashlib.blake2b(digest_size=6)
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
