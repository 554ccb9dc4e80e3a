"""Shows what was found in a log: a table and a line for people, or one object for scripts."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from holdfast_cli.loss_logs.log_columns import LogColumns
from holdfast_cli.loss_logs.log_judge import LogFinding, LogJudge
from holdfast_core.detectors.numbers.loss_baseline import MIN_HISTORY
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import DEFAULTS, TIER_WORDS

MOST_FINDINGS = 1000
"""Findings that are shown, so that a log of any length needs little memory. All are counted."""


@dataclass
class LogReport:
    """What was found in one log."""

    name: str
    """The file, for people."""
    columns: LogColumns
    findings: list[LogFinding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Word of the tier, or the kind of what is not about the loss -> number."""
    cut_row: int = 0
    """Last row, if it was left out because it is cut off; else 0."""

    def add(self, finding: LogFinding) -> None:
        """Count a finding, and keep it if it is one of the first."""
        self.counts[finding.tier or finding.kind] += 1
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)

    @property
    def left_out(self) -> int:
        """Findings that are counted and not shown."""
        return self.counts.total() - len(self.findings)

    def has(self, tiers: Sequence[str]) -> bool:
        """Whether there is a finding of one of the tiers."""
        return any(self.counts[tier] for tier in tiers)


def table_of(report: LogReport) -> Table:
    """Return the findings as a table."""
    table = Table(box=None, pad_edge=False)
    for name in ("finding", "step", "row", "loss", "level", "z"):
        table.add_column(name, justify="left" if name == "finding" else "right", no_wrap=True)
    for one in report.findings:
        numbers = (_shown(number) for number in (one.loss, one.level, one.zscore))
        is_plain = one.tier and one.tier != TIER_WORDS[store.LOSS_TIER_NON_FINITE]
        table.add_row(one.tier if is_plain else one.kind, str(one.step), str(one.row), *numbers)
    return table


def summary_lines(report: LogReport, judge: LogJudge) -> Iterator[str]:
    """Yield the line that sums a log up, and what a reader must know about it."""
    if report.left_out:
        yield f"{report.left_out} more findings are counted and not shown"
    found = [f"{report.counts[name]} {name}" for name in _in_order(report.counts)]
    facts = [
        f"{report.name}: {judge.losses} losses of column {report.columns.loss!r}",
        ", ".join(found) or "nothing found",
    ]
    facts.append(
        f"the first {MIN_HISTORY} losses are not judged for spikes"
        if judge.losses > MIN_HISTORY
        else f"too few losses to find a spike: it takes more than {MIN_HISTORY}"
    )
    if judge.resumes:
        facts.append(f"the step goes back {judge.resumes} {'time' if judge.resumes == 1 else 'times'}")
    if judge.repeated_rows:
        facts.append(f"{judge.repeated_rows} rows repeat a step, and only its first loss counts")
    if report.cut_row:
        facts.append(f"row {report.cut_row}, the last one, is cut off and left out")
    if not report.columns.step:
        facts.append("no column of steps: the rows are counted")
    if not judge.ends_finite:
        last = judge.last_finite_step
        known = "no loss was finite" if last is None else f"the last finite loss is at step {last}"
        facts.append(f"the loss is not finite at the end: {known}")
    if judge.lost is not None:
        facts.append(judge.lost.message)
    yield " · ".join(facts)


def judged_object(report: LogReport, judge: LogJudge) -> dict[str, Any]:
    """Return the report for scripts. Numbers that are not finite are null."""
    return {
        "file": report.name,
        "columns": report.columns.named(),
        "losses": judge.losses,
        "resumes": judge.resumes,
        "repeated_rows": judge.repeated_rows,
        "baseline_losses": min(judge.losses, MIN_HISTORY),
        "cut_row": report.cut_row or None,
        "ends_finite": judge.ends_finite and judge.lost is None,
        "counts": {name: report.counts[name] for name in _in_order(report.counts)},
        "findings": [{name: _plain(value) for name, value in vars(one).items()} for one in report.findings],
        "findings_left_out": report.left_out,
    }


def _in_order(counts: Counter[str]) -> list[str]:
    """Return what was found, the worst first."""
    known = [tier for tier in reversed(DEFAULTS) if counts[tier]]
    return known + sorted(name for name in counts if name not in DEFAULTS)


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.4g}"


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
