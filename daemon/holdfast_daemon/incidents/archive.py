"""Keeps every incident of a run on disk: all versions in a log, the newest in a folder with its recording."""

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from holdfast_base.files import share_file
from holdfast_core.incidents import INCIDENTS_KEPT
from holdfast_core.model import CoreState, Observation
from holdfast_daemon.incidents import incident_folder
from holdfast_daemon.incidents.evidence_removal import remove_old_evidence
from holdfast_daemon.incidents.incident_folder import StoryError, parse_story, story_text
from holdfast_daemon.replay.recorded_tick import difference, framed
from holdfast_daemon.replay.recording import Excerpt, Recording
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.store_pb2 import Incident, Verdict

log = logging.getLogger(__name__)

LOG_BYTES = 32 * 2**20
"""Size at which a log of incidents is replaced: with 512 files named, a version of an incident has about 30 kB."""
REMOVE_EVERY_S = 600.0
"""Least time between two looks for evidence that is too much: each reads the whole folder of incidents."""

_AT_END = {
    store.INCIDENT_STATE_OPEN: store.INCIDENT_STATE_FAILED,
    store.INCIDENT_STATE_STANDSTILL: store.INCIDENT_STATE_NOTED,
}


def incidents_in_log(directory: Path, run: str, since_unix_s: float) -> list[Incident]:
    """Return the newest version of every incident in a daemon's log, oldest first. Raises OSError.

    The log also holds those of earlier runs of the same name. Those before ``since_unix_s`` are left out.
    """
    paths = (run_files.older_incident_log(directory, run), run_files.incident_log(directory, run))
    found: dict[str, Incident] = {}
    for line in chain.from_iterable(map(_lines, paths)):
        try:
            incident = parse_story(line)
        except StoryError:
            continue  # the last line of a full disk
        if incident.detected_unix_s >= since_unix_s:
            found[incident.id] = incident
    return sorted(found.values(), key=lambda incident: incident.detected_unix_s)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def state_at_end(incident: Incident) -> "store.IncidentState":
    """Return the state of an incident whose run has ended: it recovers no more."""
    return _AT_END.get(incident.state, incident.state)


class IncidentLog:
    """A file of one JSON object per line; of several with one id the last is the newest.

    When the file has become too large, it takes the place of an older one, and a new one begins.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self._path = run_files.incident_log(directory, run)
        self._older_path = run_files.older_incident_log(directory, run)
        self.attempts_total = 0
        self.failures_total = 0

    def append(self, incident: Incident) -> None:
        """Append a version. A failure, such as a full disk, is counted and logged once, and does not raise."""
        self.attempts_total += 1
        try:
            line = story_text(incident, indent=None)
            if self._path.exists() and self._path.stat().st_size >= LOG_BYTES:
                self._path.replace(self._older_path)
            with self._path.open("a") as file:
                share_file(self._path, file.fileno())
                file.write(line)
        except Exception as error:  # noqa: BLE001 (whatever it is: the incident is in the store, and the run is led)
            self.failures_total += 1
            if self.failures_total == 1:
                log.error("cannot append to %s: %s", self._path, error)


class IncidentArchive:
    """Folders ``<directory>/incidents/<run>/<incident>``.

    Nothing here raises. A disk that refuses files, or damaged files on it, are counted and logged once.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = run_files.incidents(directory, run)
        self._failures = run_files.failures(directory, run)
        self._has_kept_failure = False
        self.recording = Recording()
        """Recording of what the core is shown. The shell adds to it in every tick."""
        self._known: dict[str, Verdict | None] = {}
        """Incident -> verdict whose recording was written; None: none was. The newest :data:`INCIDENTS_KEPT`."""
        self._remover: threading.Thread | None = None
        self._removes_from_s = 0.0
        self._writing: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self.attempts_total = 0
        self.failures_total = 0

    def keep(self, incident: Incident) -> None:
        """Replace an incident's story; begin to write the recording if its verdict is new."""
        folder = self._directory / incident.id
        self.attempts_total += 1
        try:
            is_new = incident.id not in self._known
            if is_new:
                incident_folder.set_older_aside(folder, incident)
                self._remember(incident, None)
            incident_folder.write_story(folder, incident)
            if is_new:
                self._make_room()
        except Exception as error:  # noqa: BLE001 (an incident that is not on disk is in the store)
            self._failed(folder, error)
        excerpt = self.recording.excerpt()
        if excerpt is not None and self._is_news(incident, excerpt):
            self._remember(incident, incident.verdict)
            dropped, verdict = self.recording.dropped_ticks_total, incident.verdict
            self._write(
                folder, lambda: incident_folder.write_recording(folder, excerpt, verdict, dropped_ticks=dropped)
            )

    def _remember(self, incident: Incident, verdict: Verdict | None) -> None:
        self._known[incident.id] = verdict
        while len(self._known) > INCIDENTS_KEPT:
            del self._known[next(iter(self._known))]

    def _make_room(self) -> None:
        """Begin to remove old evidence, in a thread that does not keep the daemon alive: a disk may block it."""
        now_s = time.monotonic()
        if now_s < self._removes_from_s or (self._remover is not None and self._remover.is_alive()):
            return
        self._removes_from_s = now_s + REMOVE_EVERY_S

        def remove() -> None:
            try:
                remove_old_evidence(self._directory, time.time(), self._failed)
            except Exception as error:  # noqa: BLE001 (as above)
                self._failed(self._directory, error)

        self._remover = threading.Thread(target=remove, name="evidence-removal", daemon=True)
        self._remover.start()

    def keep_failure(self, state: CoreState, now: float, observation: Observation, error: Exception) -> None:
        """Write state, observation and traceback of the first tick that the core failed on.

        The recording begins again, because the core has not run this tick as it was recorded.
        """
        self.recording.forget()
        if self._has_kept_failure:
            return
        self._has_kept_failure = True
        excerpt = Excerpt(state, (framed(difference(state.nodes, now, observation)),))
        text = "".join(traceback.format_exception(error))
        self._write(self._failures, lambda: incident_folder.write_failure(self._failures, excerpt, text))

    def _write(self, folder: Path, job: Callable[[], None]) -> None:
        """Begin to write in a thread: with many ranks it takes time, and commands wait for the end of this tick."""
        self.attempts_total += 1

        async def write() -> None:
            try:
                async with self._turn:  # a verdict may change while the recording of an earlier one is being written
                    await asyncio.to_thread(job)
            except Exception as error:  # noqa: BLE001 (as above)
                self._failed(folder, error)

        task = asyncio.create_task(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def _is_news(self, incident: Incident, excerpt: Excerpt) -> bool:
        """Whether the recorded ticks led to this verdict, and no recording of it is written yet."""
        known = self._known.get(incident.id)
        before = excerpt.base.incidents.get(incident.id)
        seen = [known] if known is not None else [before.verdict] if before is not None else []
        return not any(same_verdict(verdict, incident.verdict) for verdict in seen)

    def _failed(self, folder: Path, error: Exception) -> None:
        self.failures_total += 1
        if self.failures_total == 1:
            log.error("%s cannot be written: %s", folder, error)


def same_verdict(one: Verdict, other: Verdict) -> bool:
    """Return whether two verdicts name the same kind, culprits and call. Their evidence may differ."""

    def named(verdict: Verdict) -> tuple[object, ...]:
        return verdict.kind, tuple(verdict.culprits), verdict.group, verdict.seq

    return named(one) == named(other)


def same_data(one: Verdict, other: Verdict) -> bool:
    """Return whether all data of two verdicts is the same. Their texts may differ: they are rendered."""

    def data(verdict: Verdict) -> Verdict:
        typed = Verdict()
        typed.CopyFrom(verdict)
        if verdict.WhichOneof("detail") is not None or verdict.HasField("device_call"):
            typed.ClearField("message")
            typed.ClearField("calls")
        return typed

    return data(one) == data(other)
