"""The outcome of one part: passed, failed or skipped, with its figures and its checks, as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

State = Literal["passed", "failed", "skipped"]
LINE_START = "OUTCOME "
"""Start of the line on which the process of a part prints its outcome."""


@dataclass(frozen=True)
class Check:
    """A statement that a part has tried, and whether it held."""

    what: str
    held: bool
    detail: str = ""
    """What was seen instead, or how it was seen."""


@dataclass(frozen=True)
class Outcome:
    """What a part has shown."""

    state: State
    reason: str = ""
    """Why it was skipped, or why it failed without a check that says so."""
    figures: dict[str, str] = field(default_factory=dict)
    """Measured values with their units, by name."""
    checks: tuple[Check, ...] = ()
    tests: dict[str, str] = field(default_factory=dict)
    """Results of tests by name: passed, failed, or skipped with the reason."""

    @classmethod
    def of(cls, figures: dict[str, str], checks: list[Check]) -> "Outcome":
        """Return the outcome of a measurement: it passed if every check held."""
        broken = [check.what for check in checks if not check.held]
        reason = f"not seen: {'; '.join(broken)}" if broken else ""
        return cls("failed" if broken else "passed", reason, figures, tuple(checks))

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "Outcome":
        """Return the outcome of plain data. Raises ValueError if it is none."""
        try:
            if plain["state"] not in get_args(State):
                raise ValueError(f"the state of a part is {plain['state']!r}")
            return cls(
                state=plain["state"],
                reason=str(plain["reason"]),
                figures={str(name): str(value) for name, value in plain["figures"].items()},
                checks=tuple(Check(str(it["what"]), bool(it["held"]), str(it["detail"])) for it in plain["checks"]),
                tests={str(name): str(result) for name, result in plain["tests"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no outcome of a part: {error!r}") from None
