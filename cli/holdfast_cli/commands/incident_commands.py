"""``holdfast incidents``: what went wrong, and the story of it. ``holdfast replay``: the verdict reached again."""

from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console

from holdfast_cli.errors import CommandError, UsageError
from holdfast_cli.flags.watch_flags import (
    AcknowledgeIncidentFlags,
    ExportIncidentFlags,
    IncidentsFlags,
    ReplayFlags,
    ShowIncidentFlags,
)
from holdfast_cli.incidents.folder_files import export_incident, read_files
from holdfast_cli.incidents.story import incident_story, incident_table
from holdfast_cli.run_folder.ended import load_earlier_incidents, load_incidents
from holdfast_cli.run_folder.target import Target, find_target
from holdfast_cli.views.clean_text import cleaned
from holdfast_cli.views.output import print_json
from holdfast_core.naming import ranks_named
from holdfast_core.texts.incident_lines import enum_phrase, number_of
from holdfast_daemon.incidents.incident_folder import RecordingError, read_recording
from holdfast_daemon.replay import replaying as core_replay
from holdfast_daemon.replay.state_codec import CodecError
from holdfast_proto import run_files
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.store_pb2 import Incident, Verdict, VerdictKind

_MOST_INCIDENTS = 10**9
"""More than any run has: requests hold 32 bits."""


def list_incidents(flags: IncidentsFlags) -> None:
    """List incidents, oldest first."""
    if flags.page > 1 and flags.limit is None:
        raise UsageError("--page needs --limit N, the size of a page")
    target = find_target(flags.directory, flags.run, flags.control)
    found, count, earlier = _page(target, flags)
    if flags.json:
        print_json([to_json(incident) for incident in found])
        return
    Console().print(incident_table([cleaned(incident) for incident in found]))
    if count > len(found):
        more = (flags.limit or 0) * flags.page < count
        advice = f": --limit {flags.limit} --page {flags.page + 1} shows older ones" if more else ""
        print(f"{len(found)} of {number_of(count, 'incident')}{advice}")
    if earlier and not flags.everything:
        print(f"the folder of the run has {earlier} older ones: add --all")


def _page(target: Target, flags: IncidentsFlags) -> tuple[list[Incident], int, int]:
    """Return the incidents to list, the number of all, and the number of those of earlier starts."""
    most = min(flags.limit or 0, _MOST_INCIDENTS)
    skip = min(most * (flags.page - 1), _MOST_INCIDENTS)
    if target.record is None:
        if flags.everything:
            raise CommandError("--all reads the folder of a run that `holdfast run` started: leave out --control")
        return *target.connect().incident_page(most, skip), 0
    found = _all(target)  # those of earlier starts are the ones that are not among these
    earlier = _earlier(target, found)
    if flags.everything:
        found = [*earlier, *found]
    end = max(0, len(found) - skip)
    return found[max(0, end - most) if most else 0 : end], len(found), len(earlier)


def show(flags: ShowIncidentFlags) -> None:
    """Print the whole story of one incident."""
    incident, folder = _find(flags.identity, flags.directory, flags.run, flags.control)
    files = read_files(folder)
    if flags.json:
        stacks = [to_json(stack) for stack in files.stacks]
        print_json({**to_json(incident), "stacks": stacks, "folder": str(folder), "files": files.names})
    else:
        Console().print(incident_story(cleaned(incident), files))


def acknowledge(flags: AcknowledgeIncidentFlags) -> None:
    """Acknowledge one incident of a run that has not ended."""
    target = find_target(flags.directory, flags.run, flags.control)
    if target.ended:
        raise CommandError(f"run {target.run} has ended: its incidents ask for no attention any more")
    incident, _ = _find(flags.identity, flags.directory, flags.run, flags.control)
    target.connect().acknowledge(incident.id)
    print(f"incident {incident.id} is acknowledged")


def export(flags: ExportIncidentFlags) -> None:
    """Write the story of one incident and its evidence to one file."""
    incident, folder = _find(flags.identity, flags.directory, flags.run, flags.control)
    target = flags.to or Path(f"{incident.run}-{incident.id}.tar.gz")
    try:
        count = export_incident(incident, folder, target)
    except OSError as error:
        raise CommandError(f"--to {target}: {error}: name a file that you can write") from None
    print(f"{target}: {count} files")


def _all(target: Target) -> list[Incident]:
    record = target.unsupervised
    return load_incidents(record) if record is not None else target.connect().incidents()


def _earlier(target: Target, present: list[Incident]) -> list[Incident]:
    """Return incidents of earlier starts of the run; none if this machine has no folder of it."""
    return load_earlier_incidents(Path(target.record.directory), target.run, present) if target.record else []


def is_named(incident: Incident, identity: str) -> bool:
    """Return whether ``identity`` is an incident's id, or the number that it begins with: 1 and 0001 are the same."""
    number = incident.id.partition("-")[0]
    is_number = identity.isdecimal() and number.isdecimal() and int(identity) == int(number)
    return incident.id == identity or is_number


def _find(identity: str, directory: Path, run: str | None, control: Path | None) -> tuple[Incident, Path]:
    """Return an incident and its folder, which need not exist."""
    target = find_target(directory, run, control)
    present = _all(target)
    for incidents in (present, _earlier(target, present)):
        found = [each for each in incidents if is_named(each, identity)]
        exact = [each for each in found if each.id == identity]
        if len(found := exact or found) == 1:
            break
    else:
        if found:
            names = ", ".join(each.id for each in found)
            raise CommandError(f"several incidents of run {target.run} have the number {identity}: name one of {names}")
        raise CommandError(f"run {target.run} has no incident {identity}: `holdfast incidents --all` lists them")
    run_directory = Path(target.record.directory) if target.record else directory / target.run
    return found[0], run_files.incidents(run_directory, found[0].run or target.run) / found[0].id


def replay(flags: ReplayFlags) -> None:
    """Replay a recording and print both verdicts. Exits with 1 if they differ."""
    try:
        result = core_replay.replay(read_recording(flags.path))
    except (RecordingError, CodecError) as error:
        raise CommandError(str(error)) from None
    if flags.json:
        replayed = to_json(result.replayed) if result.replayed is not None else None
        outcome = {"agrees": result.agrees, "turns": result.ticks, "span_s": result.span_s}
        print_json({**outcome, "recorded": to_json(result.recorded), "replayed": replayed})
    else:
        print("\n".join(_lines(result)))
    if not result.agrees:
        raise typer.Exit(ExitCode.FAILED)


def _lines(result: core_replay.Replay) -> Iterator[str]:
    """Yield the verdict on record, the one reached again, and whether they agree."""
    yield f"recorded: {_verdict_line(result.recorded)}"
    yield f"replayed: {_verdict_line(result.replayed) if result.replayed is not None else 'no such incident'}"
    agreement = "the same verdict" if result.agrees else "another verdict"
    yield f"{agreement}, from {result.ticks} ticks in {result.span_s:.1f} s"


def _verdict_line(verdict: Verdict) -> str:
    kind = enum_phrase(VerdictKind, verdict.kind)
    culprits = f" of {ranks_named(sorted(verdict.culprits))}" if verdict.culprits else ""
    call = f" at call {verdict.seq} of group {verdict.group}" if verdict.group else ""
    return f"{kind}{culprits}{call}: {verdict.message}"
