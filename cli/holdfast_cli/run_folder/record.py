"""The record of a run, by which the other commands find it."""

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_cli.run_folder.processes import ProcessIdentity
from holdfast_proto import keys
from holdfast_proto.atomic_file import replace_file
from holdfast_proto.private_files import distrust

_FILE = "run.json"
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


def load_record(run_directory: Path) -> RunRecord | None:
    """Return the record in a run's directory, or None if there is none of this version."""
    path = run_directory / _FILE
    try:
        problem = distrust(path)
        why = f"{path} {problem}: run this as the user who started the run" if problem else ""
        return RunRecord(**json.loads(path.read_text()), distrust=why)
    except (OSError, TypeError, json.JSONDecodeError):
        return None


def find_record(directory: Path, run: str | None) -> RunRecord:
    """Return the record of ``run``, or of the newest run under ``directory``. Raises CommandError if there is none."""
    if run is not None:
        record = load_record(directory / run) or _record_of_node(directory, run)
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
    records = [record for record in find_records(directory) if record.run == run]
    return next((record for record in records if record.supervisor.is_alive()), next(iter(records), None))


def known_runs(directory: Path, others: Iterable[str] = ()) -> str:
    """Return, as part of an error, which runs there are under ``directory``: the newest ones, then ``others``."""
    found = dict.fromkeys([*(record.run for record in find_records(directory)), *others])
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
    """Return the records of all runs under ``directory``, the newest first."""
    found = [record for path in directory.glob(f"*/{_FILE}") if (record := load_record(path.parent)) is not None]
    return sorted(found, key=lambda record: -record.created_unix_s)
