"""The record of a run, by which the other commands find it."""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_origin, get_type_hints

from holdfast_base.files import distrust, read_regular, replace_file
from holdfast_base.run_processes import ProcessIdentity
from holdfast_cli.errors import CommandError
from holdfast_proto import keys
from holdfast_proto.limits import is_count, is_unix_time

_FILE = "run.json"
_MOST_BYTES = 1 << 20
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters: JSON can spell them, and neither a path nor a terminal takes them."""
_LARGEST_PID = 1 << 22
"""Largest pid that Linux gives."""
_MOST_NAMES = 8
"""Runs that an error names."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Places of the parts of one run. Paths are absolute."""

    run: str
    instance: str
    pid: int
    """Pid of the process that supervises the run."""
    start_ticks: int
    node: str
    directory: str
    runtime_directory: str
    shm_directory: str
    """The folder of this run's snapshots, not the file system that it is in."""
    checkpoint_directory: str
    control: str
    """The daemon's control socket."""
    store_url: str
    created_unix_s: float
    components: dict[str, dict[str, object]] = dataclasses.field(default_factory=dict)
    """Name -> pid, and metrics_port where it has one."""
    observed: bool = False
    """Whether another launcher starts the ranks, so that Holdfast has no logs of them."""
    outcome: str = ""
    """How the run ended, in words; empty while it runs."""

    distrust: str = dataclasses.field(default="", compare=False)
    """Reason to think that another user wrote it; empty: only this user can have."""

    def check_own(self) -> None:
        """Raise CommandError unless it is this user's: it names processes to be ended and folders to be removed."""
        if self.distrust:
            raise CommandError(self.distrust)

    @property
    def supervisor(self) -> ProcessIdentity:
        """The process that supervises the run. See :meth:`check_own` before it is signalled."""
        return ProcessIdentity(self.pid, self.start_ticks)

    def save(self) -> None:
        """Replace the file in the run's directory, atomically."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name != "distrust"}
        write_json(Path(self.directory) / _FILE, fields)


def write_json(path: Path, value: object) -> None:
    """Replace ``path`` atomically: a reader sees the old text or the new one. Others can read it, and not write."""
    replace_file(path, (json.dumps(value, indent=2) + "\n").encode(), mode=0o644)


def read_record(run_directory: Path) -> RunRecord | None:
    """Return the record in a run's directory; None if there is none. Raises CommandError if it cannot be used."""
    path = run_directory / _FILE
    try:
        problem = distrust(path)
        why = f"{path} {problem}: run this as the user who started the run" if problem else ""
        record = RunRecord(**json.loads(read_regular(path, _MOST_BYTES)), distrust=why)
        is_sound = all(_is_of(getattr(record, name), kind) for name, kind in get_type_hints(RunRecord).items())
        if is_sound and 0 < record.pid <= _LARGEST_PID:
            return record
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}: make it a file that you can read, or remove it") from None
    except (TypeError, ValueError, RecursionError):
        pass
    raise CommandError(
        f"{path} is damaged, or of another version of Holdfast: use that version, or remove the file to forget the run"
    )


def load_record(run_directory: Path) -> RunRecord | None:
    """Return the record in a run's directory, or None if there is none that can be used."""
    try:
        return read_record(run_directory)
    except CommandError:
        return None


def _is_of(value: object, kind: object) -> bool:
    if kind is float:
        return is_unix_time(value)
    if kind is int:
        return is_count(value)
    if kind is str:  # most become paths
        return isinstance(value, str) and "\0" not in value and not _SURROGATES.search(value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_is_component(name, facts) for name, facts in value.items())
    return type(value) is kind


def _is_component(name: object, facts: object) -> bool:
    """Return whether a name and its facts are as a run writes them: a pid, and ports by their names."""
    return _is_of(name, str) and isinstance(facts, dict) and all(is_count(number) for number in facts.values())


def find_record(directory: Path, run: str | None) -> RunRecord:
    """Return the record of ``run``, or of the newest run under ``directory``. Raises CommandError if there is none."""
    if run is not None:
        record = read_record(directory / run) or _record_of_node(directory, run)
        if record is None:
            raise CommandError(
                f"no run {run} under {directory.absolute()}, {known_runs(directory)}: "
                "name one of its runs, or another folder with --directory"
            )
        return record
    records = find_records(directory)
    if not records:
        raise CommandError(
            f"no run under {directory}{os.sep}: start one with `holdfast run`, "
            "or name the folder of your runs with --directory"
        )
    return records[0]


def _record_of_node(directory: Path, run: str) -> RunRecord | None:
    """Return the record of a node of a run that several nodes observe: one that runs here, else the newest."""
    records = [record for record in _look(directory)[0] if record.run == run]
    return next((record for record in records if record.supervisor.is_alive()), next(iter(records), None))


def known_runs(directory: Path, others: Iterable[str] = ()) -> str:
    """Return, as part of an error, which runs there are under ``directory``: the newest ones, then ``others``."""
    found = dict.fromkeys([*(record.run for record in _look(directory)[0]), *others])
    names = [name for name in found if _is_run_name(name)]
    if not names:
        return "which has no run" if directory.is_dir() else "which is no folder"
    more = len(names) - _MOST_NAMES
    return f"which has {', '.join(names[:_MOST_NAMES])}" + (f" and {more} more" if more > 0 else "")


def _is_run_name(name: str) -> bool:
    try:
        keys.check_run_name(name)
    except ValueError:
        return False
    return True


def find_records(directory: Path) -> list[RunRecord]:
    """Return the records of all runs under ``directory``, the newest first. Write a line on stderr for the others.

    Raises CommandError if there are others alone.
    """
    found, problems = _look(directory)
    if problems and not found:
        raise CommandError(problems[0])
    for problem in problems:
        print(f"holdfast: {problem}", file=sys.stderr)
    return found


def _look(directory: Path) -> tuple[list[RunRecord], list[str]]:
    """Return the records, the newest first, and why the others cannot be used."""
    found, problems = [], []
    for path in sorted(directory.glob(f"*/{_FILE}")):
        try:
            record = read_record(path.parent)
        except CommandError as error:
            problems.append(str(error))
        else:
            found += [record] if record is not None else []
    return sorted(found, key=lambda record: -record.created_unix_s), problems
