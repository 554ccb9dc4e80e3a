"""``holdfast spikes``: judges the log of any training run with the detectors of the daemon."""

import typer
from rich.console import Console

from holdfast_cli.errors import ConfigurationError
from holdfast_cli.flags.watching import SpikesFlags
from holdfast_cli.loss_logs.log_judge import LogJudge
from holdfast_cli.loss_logs.log_report import LogReport, as_object, summary_lines, table_of
from holdfast_cli.loss_logs.log_rows import open_file, open_log
from holdfast_cli.views.output import print_json
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.loss_tiers import DEFAULTS

_TABLE_COLUMNS = 100


def spikes(flags: SpikesFlags) -> None:
    """Judge a log."""
    judge = LogJudge()
    with open_file(flags.file) as (file, name):
        log = open_log(file, name, loss=flags.loss_column, step=flags.step_column)
        report = LogReport(name, log.columns)
        for row in log.rows:
            for finding in judge.see(row):
                report.add(finding)
        for finding in judge.end():
            report.add(finding)
        report.cut_row = log.lines.cut_row
    if not judge.losses:
        raise ConfigurationError(
            f"{name}: no row has a number in column {log.columns.loss!r}: name another with --loss-column"
        )
    if flags.json:
        print_json(as_object(report, judge))
    else:
        if report.findings:
            Console(width=_TABLE_COLUMNS).print(table_of(report))
        print("\n".join(summary_lines(report, judge)))
    if flags.fail_on is not None:
        tiers = list(DEFAULTS)
        if report.has(tiers[tiers.index(flags.fail_on) :]):
            raise typer.Exit(ExitCode.FAILED)
