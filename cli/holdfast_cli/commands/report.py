"""``holdfast report``: one file that shows what a run was like."""

from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.reports import ReportFlags
from holdfast_cli.reports.page import report_page
from holdfast_cli.reports.redaction import redaction
from holdfast_cli.reports.run_source import RunFacts, find_source, read_facts
from holdfast_proto.atomic_file import replace_file


def report(flags: ReportFlags) -> None:
    """Write the report of a run."""
    facts = read_facts(find_source(flags.directory, flags.run))
    page = report_page(
        facts, redaction(_hosts(facts), redact_hosts=flags.redact_hosts), show_arguments=flags.show_arguments
    )
    target = flags.output or Path(f"{facts.name}-report.html")
    try:
        replace_file(target, page.encode(), mode=0o600)
    except OSError as error:
        raise CommandError(f"--output {target}: {error}: name a file that you can write") from None
    for gap in facts.gaps:
        print(f"not in the report: {gap}")
    print(f"{target}: {len(page.encode()) / 1e6:.1f} MB")


def _hosts(facts: RunFacts) -> list[str]:
    """Return the names of nodes that the report may mention."""
    named = [str(name) for name in facts.status.get("nodes") or ()]
    named += [str(rank.get("node", "")) for rank in facts.status.get("ranks") or ()]
    named += [incident.verdict.node for incident in facts.incidents]
    return [*named, facts.source.record.node if facts.source.record else ""]
