"""The folder of an incident on the daemon's disk: its story, and what the core was shown until the verdict."""

import json
import lzma
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError

from holdfast_base.files import UnfitFileError, make_folder_of_run, read_regular, replace_file
from holdfast_base.text import reason_of
from holdfast_core.model import CoreState
from holdfast_daemon.history.history_file import spec_without_secrets
from holdfast_daemon.replay.recorded_tick import decode_state, encode_state, unframed
from holdfast_daemon.replay.recording import Excerpt
from holdfast_daemon.replay.state_codec import CodecError
from holdfast_proto.message_json import from_json, to_json
from holdfast_proto.v1.recording_pb2 import RecordedTurn
from holdfast_proto.v1.store_pb2 import Incident, Verdict

STORY = "incident.json"
"""Name of the file in an incident's folder."""


class StoryError(ValueError):
    """A text is not the JSON of an incident; the message says why in one line."""


def story_text(incident: Incident, *, indent: int | None = 1) -> str:
    """Return the JSON of an incident: indented for its folder; on one line, for the log, without ``indent``."""
    return json.dumps(to_json(incident), indent=indent) + "\n"


def parse_story(text: str | bytes) -> Incident:
    """Return the incident of a story, whichever version has written it. Raises StoryError."""
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise StoryError("it is no JSON object")
        return from_json(fields, Incident())
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoryError(reason_of(error)) from None


STATE = "core.json"
TICKS = "observations.binpb"
README = "README.txt"
TRACEBACK = "traceback.txt"
MOST_FILE_BYTES = 256 << 20
"""Most bytes of a file of a recording: the ticks have up to 64 MiB, and the state of 10,000 ranks some 50 MB."""
MOST_ARCHIVE_BYTES = 512 << 20
"""Most bytes of an archive, unpacked, that are looked through: the files of a recording are near its start."""

_FORMAT = 5
"""Number of the recording's format. It grows whenever a field of the core's state gets another name or meaning: a
recording holds that state, and the core can only continue from a state of its own version. Stories have no number,
because every version reads those of all earlier ones."""

README_TEXT = """\
One incident of a training run that Holdfast watched.

incident.json                     the verdict, what it was judged from, what was done and when
core.json, observations.binpb     the state of the daemon's core up to a minute before, and all that it was shown since:
                                  `holdfast replay` on this folder reaches the verdict again
suspicion/                        the same kinds of files as below, gathered when the run first seemed to hang
rank-*.black_box.json             step, phase, progress of every process group, last calls, last words
rank-*.exit.json                  how a rank ended: exit code or signal, last words, the kernel's line if it killed it
rank-*.flight_recorder.json       the rank's own list of its collectives
rank-*.flight_recorder_*.json     the same of groups on devices, such as NCCL's: a file for each backend
rank-*.stack.txt, .stack.json     stacks of all threads, taken from outside
rank-*.proc.txt                   what the kernel says about the process and its threads
node-*.system.txt                 load, memory, pressure, free disk space, largest processes
node-*.nvidia-smi.txt             state of the devices
node-*.findings.json              what the node's agent made of these files
missing.txt                       what could not be had, and why
removed.txt                       when the files above were removed to make room; the story stays
"""


class RecordingError(Exception):
    """A folder or archive holds no recording that can be replayed; the message is one line for people."""


@dataclass(frozen=True)
class RecordedIncident:
    """An incident and what the core was shown until its verdict."""

    incident: Incident
    verdict: Verdict
    """What the ticks lead to, without the evidence of later ones."""
    base: CoreState
    ticks: tuple[RecordedTurn, ...]


def set_older_aside(folder: Path, incident: Incident) -> None:
    """Rename the folder if an earlier run of the same name has left it, or if its story is damaged. Raises OSError."""
    try:
        detected_unix_s = parse_story((folder / STORY).read_bytes()).detected_unix_s
    except FileNotFoundError:
        return
    except StoryError:
        folder.rename(folder.with_name(f"{folder.name}.damaged.{incident.detected_unix_s:.0f}"))
        return
    if detected_unix_s != incident.detected_unix_s:
        folder.rename(folder.with_name(f"{folder.name}.{detected_unix_s:.0f}"))


def write_story(folder: Path, incident: Incident) -> None:
    """Create the folder, or replace the story in it. Raises OSError."""
    make_folder_of_run(folder)  # private: last words may hold secrets of the script
    replace_file(folder / README, README_TEXT.encode())
    replace_file(folder / STORY, story_text(incident).encode())


def write_recording(folder: Path, excerpt: Excerpt, verdict: Verdict | None, *, dropped_ticks: int) -> None:
    """Write what `holdfast replay` reads, without secrets of the run's command and without where it notifies people.

    Raises OSError, and CodecError if the state cannot be carried.
    """
    spec = spec_without_secrets(excerpt.base.spec)
    spec.ClearField("notify")
    state = {"format": _FORMAT, "dropped_turns": dropped_ticks, "state": encode_state(replace(excerpt.base, spec=spec))}
    if verdict is not None:
        state["verdict"] = to_json(verdict)
    replace_file(folder / TICKS, b"".join(excerpt.ticks))
    replace_file(folder / STATE, json.dumps(state).encode())


def write_failure(folder: Path, excerpt: Excerpt, text: str) -> None:
    """Write the tick that the core failed on, and what it raised. Raises OSError, and CodecError as above."""
    make_folder_of_run(folder)  # private, as above
    replace_file(folder / TRACEBACK, text.encode())
    write_recording(folder, excerpt, None, dropped_ticks=0)


def read_recording(path: Path) -> RecordedIncident:
    """Read an incident's folder, or an archive that `holdfast incidents export` has made of it.

    Raises RecordingError.
    """
    try:
        story, state, ticks = _read(path, (STORY, STATE, TICKS))
        incident = parse_story(story)
        data = json.loads(state)
        base = _state(data, path)
        verdict = from_json(data["verdict"], Verdict())
        return RecordedIncident(incident, verdict, base, tuple(unframed(ticks)))
    except (OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise RecordingError(f"{path}: {reason_of(error)}: name an incident's folder or exported archive") from None
    except (CodecError, DecodeError, ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = f"recorded by another version of Holdfast, or damaged: {reason_of(error)}"
        raise RecordingError(f"{path}: {reason}") from None


def _state(data: object, path: Path) -> CoreState:
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise ValueError(f"{STATE} names no format")
    if (found := data["format"]) != _FORMAT:
        raise RecordingError(
            f"{path}: its recording has format {found}, and this version of Holdfast replays format {_FORMAT}: use the"
            f" version that recorded it; its story, {STORY}, can still be read"
        )
    for name in ("state", "verdict"):
        if name not in data:
            raise ValueError(f"{STATE} names no {name}")
    return decode_state(data["state"])


def _read(path: Path, names: Sequence[str]) -> list[bytes]:
    if path.is_dir():
        return [read_regular(path / name, MOST_FILE_BYTES) for name in names]
    with tarfile.open(path) as archive:
        return _members(archive, names)


def _members(archive: tarfile.TarFile, names: Sequence[str]) -> list[bytes]:
    """Return the files of these names in the archive's one folder; nothing else is unpacked into memory."""
    found: dict[str, bytes] = {}
    for member in archive:
        if member.offset_data + member.size > MOST_ARCHIVE_BYTES:
            break  # a small archive that becomes a large one would take hours to go through
        name = member.name.partition("/")[2]
        if name not in names or name in found:
            continue
        if member.size > MOST_FILE_BYTES:
            raise UnfitFileError(0, f"{name} in it has more than {MOST_FILE_BYTES} bytes")
        if (file := archive.extractfile(member)) is not None:
            found[name] = file.read()
        if len(found) == len(names):
            return [found[each] for each in names]
    missing = next(each for each in names if each not in found)
    raise FileNotFoundError(f"no {missing} in the first {MOST_ARCHIVE_BYTES >> 20} MiB of it")
