"""``holdfast report``: what a run was like, in one file. ``holdfast compare``: whether a second run is worse."""

import typer
from rich.console import Console

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.reports import CompareFlags, ReportFlags
from holdfast_cli.reports.comparison import compare_runs
from holdfast_cli.reports.page import write_report
from holdfast_cli.reports.regressions import REGRESSED, UNKNOWN, parse_checks
from holdfast_cli.reports.run_facts import find_source, read_facts
from holdfast_cli.views.output import print_json
from holdfast_proto.exit_codes import ExitCode


def compare(flags: CompareFlags) -> None:
    """Print the comparison. Exits with 3 for a regression, and with 1 if a check lacks a number."""
    checks = parse_checks(flags.fail_on or ())
    first, second = (read_facts(find_source(flags.directory, name)) for name in (flags.first, flags.second))
    compared = compare_runs(first, second, checks, show_arguments=flags.show_arguments)
    if flags.json:
        print_json(compared.as_json())
    else:
        Console().print(compared.as_text())
    unknown = [check.text for check, outcome in compared.outcomes if outcome == UNKNOWN]
    if unknown:
        raise CommandError(
            f"cannot check {', '.join(map(repr, unknown))}, because a run lacks the number: leave out the check, or "
            "compare runs that have it"
        )
    if any(outcome == REGRESSED for _, outcome in compared.outcomes):
        raise typer.Exit(ExitCode.REGRESSED)


def report(flags: ReportFlags) -> None:
    """Write the report of a run."""
    facts = read_facts(find_source(flags.directory, flags.run))
    written = write_report(facts, flags.output, redact_hosts=flags.redact_hosts, show_arguments=flags.show_arguments)
    for gap in written.gaps:
        print(f"not in the report: {gap}")
    print(f"{written.path}: {written.size_bytes / 1e6:.1f} MB")
