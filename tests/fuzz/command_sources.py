"""Readers of the files that commands, daemons and trainers are given."""

import gzip
import io
import json
import math
import os
import sqlite3
import tarfile
import zlib
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_cli.errors import CommandError
from holdfast_cli.incidents.folder_files import read_files
from holdfast_cli.run_folder.record import read_record
from holdfast_cli.views.console_address import address_lines
from holdfast_core import coordinator
from holdfast_core.model import CoreState, Observation
from holdfast_daemon.console.serving.sessions import load_tokens
from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.history_reader import HistoryError, RunHistory
from holdfast_daemon.history.history_tables import MEMORY
from holdfast_daemon.history.rows import CheckpointRow, MetricRow
from holdfast_daemon.incidents import incident_folder
from holdfast_daemon.incidents.incident_folder import RecordingError, StoryError, parse_story, read_recording
from holdfast_daemon.notify import reported
from holdfast_daemon.notify.message import Message, Notice
from holdfast_daemon.replay.recorded_tick import observation_of
from holdfast_daemon.replay.recording import Excerpt, Recording
from holdfast_daemon.replay.state_codec import CodecError
from holdfast_hooks import ConfigurationError
from holdfast_proto import run_files
from holdfast_proto.endpoint import read_endpoint
from holdfast_proto.v1 import store_pb2 as store
from holdfast_trainer.data import corpus, overlap
from holdfast_trainer.data.token_file import open_token_file
from tests.fuzz.harness import Source
from tests.fuzz.mutations import either, mutate_bytes, mutate_json
from tests.support.core_world import World
from tests.support.histories import counted

_MEMBERS = ("incident.json", "core.json", "observations.binpb")
_RECORD: dict[str, Any] = {
    "run": "r", "instance": "i", "pid": 7, "start_ticks": 9, "node": "local", "directory": "/r", "control": "/c",
    "runtime_directory": "/t", "shm_directory": "/s", "checkpoint_directory": "/k", "store_url": "unix:/x",
    "created_unix_s": 1.5, "components": {"daemon": {"pid": 8, "metrics_port": 9}}, "observed": False, "outcome": "",
}  # fmt: skip
_ENDPOINT = {"pid": 7, "metrics_port": 9, "console_port": 10, "console_address": "::", "console_tokens": "/t"}


def _text(document: object) -> list[bytes]:
    return [json.dumps(document).encode()]


def _read_run(path: Path) -> None:
    record = read_record(path.parent)
    if record is not None:
        os.fsencode(Path(record.directory, record.control))
        assert not record.supervisor.is_alive() or record.pid > 0
        json.dumps([record.run, record.node, record.components]).encode()
        assert all(type(number) is int for facts in record.components.values() for number in facts.values())
        record.run.encode()


def _read_tokens(path: Path) -> None:
    path.chmod(0o600)
    address_lines("::", 80, path, "operator")
    tokens = load_tokens(path)
    tokens.role("x")


def _packed(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(f"0001/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def _incident(folder: Path) -> dict[str, bytes]:
    """Return the files of an incident that the core has just reached."""
    recording, step = Recording(), coordinator.step

    def noting(state: CoreState, now: float, observation: Observation, *rest: Any) -> Any:
        recording.note(state, now, observation)
        return step(state, now, observation, *rest)

    with mock.patch.object(coordinator, "step", noting):
        world = World(ranks_per_node=1)
        world.spec.loss_policy.blip.action = store.LOSS_ACTION_NOTIFY
        world.until("starting")
        world.train(60)
        world.train(1, loss=50.0)
    excerpt, (incident,) = recording.excerpt(), world.incidents
    assert excerpt is not None
    short = Excerpt(excerpt.base, excerpt.ticks[:20])
    incident_folder.write_story(folder, incident)
    incident_folder.write_recording(folder, short, incident.verdict, dropped_ticks=0)
    return {name: (folder / name).read_bytes() for name in _MEMBERS}


def _archives(folder: Path) -> list[bytes]:
    packed = _packed(_incident(folder))
    return [packed, gzip.compress(packed)]


def _mutate_member(random: Random, data: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {each.name.partition("/")[2]: archive.extractfile(each) for each in archive}
        members = {name: file.read() for name, file in files.items() if file is not None}
    name = random.choice(_MEMBERS)
    is_json = name.endswith(".json") and random.random() < 0.8
    members[name] = (mutate_json if is_json else mutate_bytes)(random, members[name])
    return _packed(members)


def _read_recording(path: Path) -> None:
    recorded = read_recording(path)
    nodes = recorded.base.nodes
    for tick in recorded.ticks:
        nodes = observation_of(nodes, tick).nodes


def _archive_bomb(path: Path) -> None:
    """Write an archive of 1.5 MB whose state has 1.6 GiB."""
    entry = tarfile.TarInfo("0001/core.json")
    entry.size = 200 * (8 << 20)
    head = _packed({"incident.json": (path.parent / "incident.json").read_bytes()}).rstrip(b"\x00")
    head += bytes(-len(head) % 512)
    path.write_bytes(gzip.compress(head + entry.tobuf()) + gzip.compress(bytes(8 << 20)) * 201)


def _tokens_of(folder: Path) -> list[bytes]:
    found = []
    for kind in (np.uint16, np.uint32):
        path = folder / "made.npy"
        np.save(path, np.arange(100, dtype=kind))
        found.append(path.read_bytes())
    return found


def _read_token_file(path: Path) -> None:
    open_token_file(path, setting="data.source", dtype="uint16").map().sum()


def _npz_bomb(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b"{" * 100)


def _read_folder(path: Path) -> None:
    path.with_name("node-a.findings.json").write_bytes(path.read_bytes())
    for box in read_files(path.parent).black_boxes:
        assert box.rank >= 0


_COPY = {"rank": 0, "step": -1, "phase": 1, "groups": [{"group": "0", "enqueued": 3, "completed": 2}]}
_FINDINGS = {"pending": [{"rank": 0, "group": "0", "seq": 3, "op": "all_reduce"}], "stacks": [{"rank": 0}]}


def _read_corpus(path: Path) -> None:
    tokens = path.with_name("tokens.bin")
    if not tokens.exists():
        tokens.write_bytes(bytes(200))
    corpus._read(path.parent)


def _facts(_: Path) -> list[bytes]:
    span = {"path": "tokens.bin", "dtype": "uint16", "offset_bytes": 0, "count": 50}
    return _text({"train": span, "validation": {**span, "offset_bytes": 100}, "largest_id": 0, "digest": "0"})


def _reported_samples(_: Path) -> list[bytes]:
    notice = Notice(event="incident", status="open", key="1", what="w", next="n", unix_s=1.0, see="s")
    message = Message(run="r", host="h", title="t", sent_unix_s=1.0, notices=(notice,), left_out=0)
    known = reported.Reported("i", {"0001-a": "open"}, grouped=(notice,), queued={"a": (message,)})
    return [reported.reported_text(known).encode()]


def _read_reported(path: Path) -> None:
    reported.reported_text(reported.load(path, "i"))


def _histories(folder: Path) -> list[bytes]:
    world = World(ranks_per_node=1)
    world.until("starting")
    world.train(5)
    metric = MetricRow(MEMORY, 1, 3, 1.0, 5.0)
    rows = StartRows(
        steps=[counted(step, loss=1.0, nonfinite=("grad_norm",)) for step in range(30)],
        checkpoints=[CheckpointRow(1, 3, 1.0, 5, 4, 0.5)],
        metrics=[metric],
        state=world.state,
        state_unix_s=5.0,
    )
    HistoryFile(folder, "r").write([("i", rows)])
    path = run_files.history(folder, "r")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("VACUUM")
    return [path.read_bytes()]


_ODD_CELLS = (None, "text", b"\x00", -1, 0.5, (1 << 63) - 1, 1e308, math.inf, "[" * 999, "[]", "\ud7ff", "{}")


def _mutate_cell(random: Random, data: bytes) -> bytes:
    """Change values of a table through SQLite, which takes any type in any column, or remove a column or a table."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(data)
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for _ in range(random.choice((1, 1, 2, 4))):
            (table,) = random.choice(tables)
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            column = random.choice(columns or ["none"])
            odd = random.choice(_ODD_CELLS)
            statement = f"UPDATE {table} SET {column} = ? WHERE rowid % 2 OR ?2"
            if random.random() < 0.1:
                statement = random.choice((f"DROP TABLE {table}", f"ALTER TABLE {table} DROP COLUMN {column}"))
            with suppress(sqlite3.Error):
                connection.execute(statement, (odd, True) if "?" in statement else ())
        connection.commit()
        return connection.serialize()


def _read_history(path: Path) -> None:
    history = RunHistory(path)
    for name in ("i", *(start.instance for start in history.starts())):
        history.steps_after(name, -1)
        history.newest_row(name)
        json.dumps([asdict(row) for row in history.checkpoints(name)])
        json.dumps(history.final(name))
        history.kept_state(name)
        history.quantiles(name, "loss", (0.0, 0.5))
        for quantity in ("loss", "grad_norm", MEMORY):
            json.dumps(asdict(history.curve(name, quantity, points=10)))


def _state_bomb(path: Path) -> None:
    """Write a history whose state has 1.6 GiB once it is unpacked."""
    path.write_bytes((path.parent / "history" / "r.sqlite").read_bytes())
    packing = zlib.compressobj(1)
    packed = b"".join(packing.compress(bytes(8 << 20)) for _ in range(200)) + packing.flush()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE states SET state = ?", (packed,))


SOURCES = (
    Source(
        name="history",
        read=_read_history,
        errors=(HistoryError,),
        samples=_histories,
        mutate=_mutate_cell,
        bombs={"state of 1.6 GiB": _state_bomb},
        file="r.sqlite",
    ),
    Source(
        name="files of an incident",
        read=_read_folder,
        errors=(),
        samples=lambda _: [*_text(_COPY), *_text(_FINDINGS)],
        mutate=mutate_json,
        file="rank-00000.black_box.json",
    ),
    Source(
        name="reported notices",
        read=_read_reported,
        errors=(),
        samples=_reported_samples,
        mutate=mutate_json,
    ),
    Source(
        name="known checkpoints",
        read=lambda path: KnownCheckpoints("l", path).vanished(2, [1], 1),
        errors=(),
        samples=lambda _: _text({"location": "l", "history": 2, "steps": [1, 2, 3]}),
        mutate=mutate_json,
    ),
    Source(
        name="overlap of texts",
        read=overlap._read,
        errors=(),
        samples=lambda _: _text({"ngram": 13, "share": 0.5, "compared": 9}),
        mutate=mutate_json,
    ),
    Source(
        name="corpus",
        read=_read_corpus,
        errors=(ConfigurationError, OSError),
        samples=_facts,
        mutate=mutate_json,
        file="corpus.json",
    ),
    Source(
        name="run.json",
        read=_read_run,
        errors=(CommandError,),
        samples=lambda _: _text(_RECORD),
        mutate=mutate_json,
        file="run.json",
    ),
    Source(
        name="console tokens",
        read=_read_tokens,
        errors=(OSError,),
        samples=lambda _: _text({"operator": "o" * 43, "viewer": "v" * 43}),
        mutate=mutate_json,
    ),
    Source(name="endpoint", read=read_endpoint, errors=(), samples=lambda _: _text(_ENDPOINT), mutate=mutate_json),
    Source(
        name="story of an incident",
        read=lambda path: parse_story(path.read_bytes()),
        errors=(StoryError,),
        samples=lambda folder: [_incident(folder)["incident.json"]],
        mutate=mutate_json,
    ),
    Source(
        name="recording",
        read=_read_recording,
        errors=(RecordingError, CodecError),
        samples=_archives,
        mutate=either(_mutate_member, _mutate_member, mutate_bytes),
        bombs={"archive of 1.6 GiB": _archive_bomb},
    ),
    Source(
        name="token file",
        read=_read_token_file,
        errors=(ConfigurationError,),
        samples=_tokens_of,
        bombs={"header of 2 GiB": _npz_bomb},
        file="tokens.npy",
    ),
)
