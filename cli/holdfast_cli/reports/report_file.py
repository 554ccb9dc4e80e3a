"""Writes the report of a run into a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.files import replace_file
from holdfast_cli.errors import CommandError
from holdfast_cli.reports.page import report_page
from holdfast_cli.reports.redaction import redaction
from holdfast_cli.reports.run_source import RunFacts


@dataclass(frozen=True)
class WrittenReport:
    """A report on disk."""

    path: Path
    size_bytes: int
    gaps: Sequence[str]
    """What the report lacks, and why, one line each."""


def write_report(
    facts: RunFacts,
    target: Path | None,
    *,
    redact_hosts: bool = False,
    show_arguments: bool = False,
    flag: str = "--output",
) -> WrittenReport:
    """Write a report that only this user can read. Raises CommandError if the file cannot be written.

    Args:
        facts: what is known of the run.
        target: the file; None: a file in the current folder with the name of the run.
        redact_hosts: replace names of hosts and users, and paths.
        show_arguments: show the values of the command's arguments.
        flag: name of the setting that says ``target``, for the error.
    """
    hidden = redaction(_hosts(facts), redact_hosts=redact_hosts)
    page = report_page(facts, hidden, show_arguments=show_arguments).encode()
    target = target or Path(f"{facts.name}-report.html")
    try:
        replace_file(target, page, mode=0o600)
    except OSError as error:
        raise CommandError(f"{flag} {target}: {error.strerror}: name a file that you can write") from None
    return WrittenReport(target, len(page), tuple(facts.gaps))


def _hosts(facts: RunFacts) -> list[str]:
    """Return the names of nodes that the report may mention."""
    named = [str(name) for name in facts.status.get("nodes") or ()]
    named += [str(rank.get("node", "")) for rank in facts.status.get("ranks") or ()]
    named += [incident.verdict.node for incident in facts.incidents]
    return [*named, facts.source.record.node if facts.source.record else ""]
