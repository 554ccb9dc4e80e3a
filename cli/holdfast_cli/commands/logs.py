"""``holdfast logs``: what the ranks of a run have printed."""

import io
import os
import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.watch_flags import LogsFlags
from holdfast_cli.rank_logs.follower import Follower, Line, chosen_logs, logs_by_generation, newest_generation
from holdfast_cli.rank_logs.log_tail import LogTail
from holdfast_cli.run_folder.ended import load_incidents
from holdfast_cli.run_folder.record import RunRecord, find_record, load_record
from holdfast_proto.run_files import logs as log_folder

_LOOK_S = 0.2


def logs(flags: LogsFlags) -> None:
    """Print the output of ranks: what there is, or, with ``--follow``, what comes until the run ends."""
    record = find_record(flags.directory, flags.run)
    if record.observed:
        raise CommandError(
            f"Holdfast has no output of the ranks of run {record.run}, because another launcher has started them: "
            "look where that launcher prints"
        )
    ranks, generation = list(flags.rank or []), flags.generation
    if flags.culprit:
        ranks, generation = _culprits(record, flags)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what ranks print need not suit this terminal
    try:
        if flags.follow:
            _follow(record, ranks, generation, flags.lines)
        else:
            _print_present(record, ranks, generation, flags.lines)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # `| head` has seen enough; Python would complain when it flushes stdout at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _culprits(record: RunRecord, flags: LogsFlags) -> tuple[list[int], int]:
    """Return the culprits of the newest incident and their generation."""
    if flags.rank or flags.generation is not None:
        raise CommandError("--culprit names the ranks and the generation: leave out --rank and --generation")
    newest = max(load_incidents(record), key=lambda incident: incident.detected_unix_s, default=None)
    if newest is None:
        raise CommandError(f"run {record.run} has had no incident since it was started: leave out --culprit")
    if not newest.verdict.culprits:
        raise CommandError(f"incident {newest.id} names no rank: leave out --culprit, or name ranks with --rank")
    return sorted(newest.verdict.culprits), newest.generation


def _print_present(record: RunRecord, ranks: list[int], generation: int | None, count: int | None) -> None:
    found = logs_by_generation(Path(record.directory))
    if generation is None:
        generation = newest_generation(found, record.created_unix_s)
    if generation is None:
        folder = log_folder(Path(record.directory))
        raise CommandError(f"no rank of run {record.run} has a log: see those of agent and daemon in {folder}")
    chosen = chosen_logs(found, generation, ranks)
    for rank, path in chosen.items():
        tail = LogTail(path)
        texts = tail.rest() if count is None else [*tail.newest(count), *tail.rest()][-count:]
        _print((Line(generation, rank, text) for text in texts), with_ranks=len(chosen) > 1)


def _follow(record: RunRecord, ranks: list[int], generation: int | None, count: int | None) -> None:
    directory = Path(record.directory)
    follower = Follower(directory, since_unix_s=record.created_unix_s, ranks=ranks, generation=generation)
    shown: int | None = None
    newest: Iterable[Line] = follower.newest(count) if count is not None else ()
    while True:
        is_over = _is_over(record)  # before the last look, so that it sees all that was printed
        for line in chain(newest, follower.rest() if is_over else follower.lines()):
            if shown is not None and line.generation != shown:
                sys.stdout.flush()
                print(f"holdfast: generation {line.generation} of run {record.run}", file=sys.stderr, flush=True)
            shown = line.generation
            _print([line], with_ranks=len(set(ranks)) != 1)  # logs of further ranks may come
        sys.stdout.flush()
        if is_over:
            return
        newest = ()
        time.sleep(_LOOK_S)


def _print(lines: Iterable[Line], *, with_ranks: bool) -> None:
    for line in lines:
        print(line.prefixed if with_ranks else line.text)


def _is_over(record: RunRecord) -> bool:
    """Return whether nothing will start a rank of this run any more."""
    now = load_record(Path(record.directory))
    return now is None or now.instance != record.instance or bool(now.outcome) or not now.supervisor.is_alive()
