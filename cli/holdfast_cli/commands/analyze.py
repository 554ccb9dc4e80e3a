"""``holdfast analyze``: who holds up a job, from dumps. ``holdfast spikes``: what is wrong with a loss, from a log."""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

import typer
from rich.console import Console

from holdfast_cli.analysis.diagnosis_report import as_lines, as_object, diagnose_dumps, named_ranks, world_of
from holdfast_cli.analysis.dump_folder import Dumps, read_folder
from holdfast_cli.analysis.one_job import is_comparable
from holdfast_cli.errors import CommandError, SettingsError, UsageError
from holdfast_cli.flags.watch_flags import AnalyzeFlags, SpikesFlags
from holdfast_cli.loss_logs.log_judge import LogJudge
from holdfast_cli.loss_logs.log_report import LogReport, judged_object, summary_lines, table_of
from holdfast_cli.loss_logs.log_rows import open_file, open_log
from holdfast_cli.views.output import print_json
from holdfast_core.texts.device_calls import ranks_text
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1.recorder_pb2 import RecorderDump
from holdfast_proto.vocabulary import DEFAULTS


def analyze(flags: AnalyzeFlags) -> None:
    """Diagnose a folder of dumps."""
    folder, before = flags.folder.resolve(), flags.earlier.resolve() if flags.earlier is not None else None
    if before is not None and (before == folder or before in folder.parents):
        raise UsageError(f"--earlier {flags.earlier} holds the newer dumps too: name a folder of earlier dumps alone")
    with reading_note(sys.stderr) as note:
        found = read_folder(flags.folder, without=flags.earlier, note=note)
    dead = frozenset(flags.dead or ())
    newest = max(named_ranks(found, dead))
    if flags.world_size is not None and flags.world_size <= newest:
        raise UsageError(f"--world-size {flags.world_size} is too small: there is a rank {newest}")
    world = world_of(found)
    if world and (strangers := dead - set(world)):
        raise UsageError(f"--dead {min(strangers)}: the dumps name {len(world)} ranks, and this is none of them")
    earlier = _earlier(flags, found)
    with _no_search_for_circles():
        diagnosis = diagnose_dumps(found, dead=dead, world_size=flags.world_size, earlier=earlier)
    if flags.json:
        print_json(as_object(found, diagnosis))
    else:
        print("\n".join(as_lines(found, diagnosis)))


@contextmanager
def _no_search_for_circles() -> Iterator[None]:
    """Turn Python's collector off: it would look at millions of calls again and again, and none of them is garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _earlier(flags: AnalyzeFlags, found: Dumps) -> Mapping[int, RecorderDump]:
    if flags.earlier is None:
        return {}
    with reading_note(sys.stderr) as note:
        earlier = read_folder(flags.earlier, note=note).dumps
    both = earlier.keys() & found.dumps.keys()
    if not both:
        raise CommandError(
            f"--earlier {flags.earlier} has no dump of a rank that {flags.folder} has: name another folder"
        )
    compared = {rank: earlier[rank] for rank in both if is_comparable(earlier[rank], found.dumps[rank])}
    if not compared:
        raise CommandError(f"--earlier {flags.earlier} was dumped in another way than {flags.folder}: dump both alike")
    if others := both - compared.keys():
        found.refused.append(
            f"earlier dumps of {ranks_text(others)}: they were made in another way than the newer ones"
        )
    return compared


_PATIENCE_S = 2.0
"""Seconds of reading before the line is shown."""
_CLEAR = "\r\x1b[K"


@contextmanager
def reading_note(stream: TextIO, *, now: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int, int], None]]:
    """Yield what takes the number of files that were read, and of all. ``now``: a clock, in seconds.

    It shows them on one line of a terminal, and takes the line away at the end. Other streams get nothing.
    """
    begun = now()
    is_shown = False

    def note(done: int, total: int) -> None:
        nonlocal is_shown
        if now() - begun >= _PATIENCE_S and stream.isatty():
            is_shown = True
            print(f"{_CLEAR}reading files: {done} of {total}", end="", file=stream, flush=True)

    try:
        yield note
    finally:
        if is_shown:
            print(_CLEAR, end="", file=stream, flush=True)


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
        raise SettingsError(
            f"{name}: no row has a number in column {log.columns.loss!r}: name another with --loss-column"
        )
    if flags.json:
        print_json(judged_object(report, judge))
    else:
        if report.findings:
            Console(width=_TABLE_COLUMNS).print(table_of(report))
        print("\n".join(summary_lines(report, judge)))
    if flags.fail_on is not None:
        tiers = list(DEFAULTS)
        if report.has(tiers[tiers.index(flags.fail_on) :]):
            raise typer.Exit(ExitCode.FAILED)
