"""``holdfast report``: one file that shows what a run was like."""

from holdfast_cli.flags.reports import ReportFlags
from holdfast_cli.reports.report_file import write_report
from holdfast_cli.reports.run_source import find_source, read_facts


def report(flags: ReportFlags) -> None:
    """Write the report of a run."""
    facts = read_facts(find_source(flags.directory, flags.run))
    written = write_report(facts, flags.output, redact_hosts=flags.redact_hosts, show_arguments=flags.show_arguments)
    for gap in written.gaps:
        print(f"not in the report: {gap}")
    print(f"{written.path}: {written.size_bytes / 1e6:.1f} MB")
