"""The report of a demonstration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_cli.demo.faults import Injected
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_RECOVERED, Incident

_DIFFERENCES_SHOWN = 10


@dataclass(frozen=True)
class FaultReport:
    """One fault and the answer to it; times in seconds from the fault, None: never."""

    kind: str
    rank: int
    named_rank: int | None
    detected_s: float | None
    recovered_s: float | None
    lost_steps: int | None

    @property
    def is_mastered(self) -> bool:
        """Whether the right rank was named and the run came back."""
        return self.named_rank == self.rank and self.recovered_s is not None

    def to_json(self) -> dict[str, Any]:
        """Return the fields for scripts."""
        return {
            "kind": self.kind,
            "rank": self.rank,
            "named_rank": self.named_rank,
            "detected_s": _rounded(self.detected_s),
            "recovered_s": _rounded(self.recovered_s),
            "lost_steps": self.lost_steps,
        }


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """The comparison of the two runs."""

    ranks: int
    layout: Mapping[str, int]
    steps: int
    faults: Sequence[FaultReport]
    planned_faults: int
    final_loss: float
    differences: Sequence[str]
    """Differences between the final checkpoints, a line for each; empty: bit-identical."""
    page: Path
    """File that shows the disturbed run in a browser."""

    @property
    def succeeded(self) -> bool:
        """Whether every fault was mastered and the weights agree."""
        mastered = sum(fault.is_mastered for fault in self.faults)
        return mastered == self.planned_faults == len(self.faults) and not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return the report for scripts."""
        return {
            "ranks": self.ranks,
            "layout": dict(self.layout),
            "steps": self.steps,
            "faults": [fault.to_json() for fault in self.faults],
            "final_loss": self.final_loss,
            "bit_identical": not self.differences,
            "report": str(self.page),
        }

    def render(self) -> RenderableType:
        """Return the table of faults and the comparison, for people."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("fault", "rank hit", "rank named", "right?", "detected s", "recovered s", "steps lost"):
            table.add_column(column, justify="left" if column in ("fault", "right?") else "right")
        for fault in self.faults:
            table.add_row(
                fault.kind,
                str(fault.rank),
                _or_dash(fault.named_rank),
                "yes" if fault.named_rank == fault.rank else "NO",
                _or_dash(_rounded(fault.detected_s)),
                _or_dash(_rounded(fault.recovered_s)),
                _or_dash(fault.lost_steps),
                style="green" if fault.is_mastered else "bold red",
            )
        return Group(table, *self._verdict(), Text(f"the disturbed run in one page, for a browser: {self.page}"))

    def _verdict(self) -> list[Text]:
        if not self.differences:
            text = f"weights, optimizer and random states of all {self.ranks} ranks agree bit by bit"
            return [Text(f"final loss {self.final_loss:.4f}: {text}", style="bold green")]
        shown = [f"  {line}" for line in self.differences[:_DIFFERENCES_SHOWN]]
        heading = f"the final checkpoints differ in {len(self.differences)} places:"
        return [Text(heading, style="bold red"), *(Text(line) for line in shown)]


def judge(injected: Sequence[Injected], incidents: Sequence[Incident]) -> list[FaultReport]:
    """Pair every fault with the first incident between it and the next fault."""
    ends = [fault.unix_s for fault in injected[1:]] + [float("inf")]
    return [
        _judge_one(fault, next((i for i in incidents if fault.unix_s <= i.detected_unix_s < end), None))
        for fault, end in zip(injected, ends, strict=False)
    ]


def _judge_one(fault: Injected, incident: Incident | None) -> FaultReport:
    if incident is None:
        return FaultReport(fault.kind, fault.rank, None, None, None, None)
    culprits = incident.verdict.culprits
    recovered = incident.state == INCIDENT_STATE_RECOVERED and incident.recovered_unix_s > 0
    return FaultReport(
        kind=fault.kind,
        rank=fault.rank,
        named_rank=culprits[0] if culprits else None,
        detected_s=incident.detected_unix_s - fault.unix_s,
        recovered_s=incident.recovered_unix_s - fault.unix_s if recovered else None,
        lost_steps=incident.lost_steps,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else str(value)
