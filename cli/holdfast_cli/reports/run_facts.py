"""Finds the files of a run, by its name or by a folder, and reads all that a report shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_base.text import moment
from holdfast_cli.errors import CommandError
from holdfast_cli.run_folder.ended import load_last_status
from holdfast_cli.run_folder.record import RunRecord, find_record, known_runs, read_record
from holdfast_cli.run_folder.target import Target
from holdfast_daemon.history.history_reader import HistoryError, RunHistory
from holdfast_daemon.history.rows import CheckpointRow, Curve, RunStart
from holdfast_daemon.incidents.archive import incidents_in_log, state_at_end
from holdfast_proto import run_files
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.store_pb2 import Incident


@dataclass(frozen=True)
class RunSource:
    """A run, and the folder with its files: that of `holdfast run`, or a daemon's ``--directory``."""

    run: str
    directory: Path
    record: RunRecord | None
    """None: the run was not started by `holdfast run` on this machine."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """All that is known of the newest start of a run. What is missing is empty, and ``gaps`` says why."""

    source: RunSource
    history: RunHistory | None
    instance: str
    created_unix_s: float
    spec: Mapping[str, Any]
    """Settings by name; empty: not known."""
    status: Mapping[str, Any]
    """Fields of the newest RunStatus; empty: not known."""
    status_unix_s: float
    """Unix time of the status; 0: there is none."""
    incidents: tuple[Incident, ...]
    checkpoints: tuple[CheckpointRow, ...]
    is_live: bool
    gaps: list[str]
    """Lines for people: what could not be read, and why. Later reads add to it."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.source.run

    def curve(self, quantity: str, *, points: int = 1, since_step: int = 0, until_step: int | None = None) -> Curve:
        """Return a curve as :meth:`RunHistory.curve` does; an empty one if the history cannot be read."""
        if self.history is not None:
            try:
                return self.history.curve(
                    self.instance, quantity, points=points, since_step=since_step, until_step=until_step
                )
            except HistoryError as error:
                self._miss(error)
        return Curve(quantity)

    def quantiles(self, quantity: str, ratios: Sequence[float]) -> list[float | None]:
        """Return quantiles as :meth:`RunHistory.quantiles` does; None if the history cannot be read."""
        if self.history is not None:
            try:
                return self.history.quantiles(self.instance, quantity, ratios)
            except HistoryError as error:
                self._miss(error)
        return [None] * len(ratios)

    def _miss(self, error: HistoryError) -> None:
        line = f"Some curves or numbers are missing: {error}"
        if line not in self.gaps:
            self.gaps.append(line)


def find_source(directory: Path, name: str | None) -> RunSource:
    """Return the run of a name under ``directory``, the newest one, or that in the folder that ``name`` is the path of.

    Raises CommandError if there is none.
    """
    if name is None:
        record = find_record(directory, None)
        return RunSource(record.run, Path(record.directory), record)
    for folder in (directory / name, Path(name)):
        found = read_record(folder)
        if found is not None:  # its own folder may be a copy in another place
            return RunSource(found.run, folder, found)
    if run_files.history(directory, name).is_file() or run_files.incident_log(directory, name).is_file():
        return RunSource(name, directory, None)
    names = _histories(Path(name))
    if len(names) == 1:
        return RunSource(names[0], Path(name), None)
    if names:
        raise CommandError(f"{name} has the histories of {', '.join(names)}: name one of them, with --directory {name}")
    raise CommandError(
        f"no run {name} under {directory.absolute()}, {known_runs(directory, _histories(directory))}, and none in a "
        f"folder {Path(name).absolute()}: name one of its runs, or with --directory another folder, such as a daemon's"
    )


def _histories(directory: Path) -> list[str]:
    """Return the names of the runs whose history a daemon keeps in its folder ``directory``."""
    found = sorted(run_files.history(directory, "*").parent.glob("*.sqlite"))
    return [path.stem for path in found if not run_files.is_set_aside_history(path)]


def read_facts(source: RunSource) -> RunFacts:
    """Read all that is known of a run. What cannot be read is left out, and named in ``gaps``."""
    gaps: list[str] = []
    history, start = _history(source, gaps)
    status, status_unix_s, is_live = _status(source, history, start, gaps)
    spec = start.spec if start is not None else {}
    created_unix_s = spec.get("created_unix_s") or (start.created_unix_s if start is not None else 0.0)
    if source.record is not None:
        created_unix_s = source.record.created_unix_s
    if not spec:
        gaps.append("The settings of the run are not known: no history holds them.")
    if not status:
        gaps.append("The state of the run is not known: the daemon has left no status.")
    elif not is_live and status.get("phase") not in ("finished", "failed"):
        gaps.append(
            f"The run was cut short, and nobody kept its end. Wall time, goodput and the uses of time are those of"
            f" {moment(status_unix_s)}; steps and curves may be newer."
        )
    return RunFacts(
        source=source,
        history=history,
        instance=start.instance if start is not None else "",
        created_unix_s=created_unix_s,
        spec=spec,
        status=status,
        status_unix_s=status_unix_s,
        incidents=tuple(_incidents(source, created_unix_s, is_live=is_live, gaps=gaps)),
        checkpoints=tuple(_checkpoints(history, start, gaps)),
        is_live=is_live,
        gaps=gaps,
    )


def _history(source: RunSource, gaps: list[str]) -> tuple[RunHistory | None, RunStart | None]:
    path = run_files.history(source.directory, source.run)
    try:
        history = RunHistory(path)
        starts = history.starts()
    except HistoryError as error:
        gaps.append(f"There are no curves: {error}")
        return None, None
    if source.record is not None:
        starts = [start for start in starts if start.instance == source.record.instance]
    if not starts:
        gaps.append("There are no curves: the history has no step of this start of the run.")
        return None, None
    return history, starts[-1]


def _status(
    source: RunSource, history: RunHistory | None, start: RunStart | None, gaps: list[str]
) -> tuple[Mapping[str, Any], float, bool]:
    """Return the newest status, its Unix time, and whether the run lives as far as this machine can tell."""
    kept = _kept_status(history, start, gaps)
    kept_unix_s = float(kept.get("history_unix_s", 0.0))
    record = source.record
    if record is None:
        return kept, kept_unix_s, bool(kept) and kept.get("phase") not in ("finished", "failed")
    is_live = not record.outcome and record.supervisor.is_alive()
    newest = None
    if is_live:
        try:
            newest = Target(record.run, Path(record.control), record).connect().status()
        except CommandError as error:
            gaps.append(f"The daemon does not answer, so that the newest numbers may be missing: {error}")
    else:
        newest = load_last_status(source.directory)
    if newest is None:
        return kept, kept_unix_s, is_live
    return {**kept, **to_json(newest)}, newest.now_unix_s, is_live


def _kept_status(history: RunHistory | None, start: RunStart | None, gaps: list[str]) -> Mapping[str, Any]:
    if history is None or start is None:
        return {}
    try:
        return history.final(start.instance) or {}
    except HistoryError as error:
        gaps.append(f"The last status in the history is lost: {error}")
        return {}


def _incidents(source: RunSource, since_unix_s: float, *, is_live: bool, gaps: list[str]) -> list[Incident]:
    try:
        found = incidents_in_log(source.directory, source.run, since_unix_s)
    except (OSError, UnicodeDecodeError) as error:
        gaps.append(f"The incidents cannot be read: {error}")
        return []
    if source.record is not None and not is_live and not source.record.observed:
        for incident in found:
            incident.state = state_at_end(incident)
    return found


def _checkpoints(history: RunHistory | None, start: RunStart | None, gaps: list[str]) -> list[CheckpointRow]:
    if history is None or start is None:
        return []
    try:
        return history.checkpoints(start.instance)
    except HistoryError as error:
        gaps.append(f"The checkpoints in the history are lost: {error}")
        return []
