"""The recording of the core's input: kept, written, read and replayed."""

import asyncio
import json
import re
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_base.text import HIDDEN
from holdfast_core import coordinator
from holdfast_core.model import CoreState, Observation
from holdfast_daemon.incidents import incident_folder
from holdfast_daemon.incidents.archive import IncidentArchive
from holdfast_daemon.incidents.incident_folder import STORY, RecordingError, parse_story, read_recording
from holdfast_daemon.replay.recorded_tick import unframed
from holdfast_daemon.replay.recording import STRETCH_S, Excerpt, Recording
from holdfast_daemon.replay.replaying import replay
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.validation.bad_values import changed
from tests.support.core_world import World
from tests.support.coroutines import PATIENCE_S, until

Watch = Callable[[Recording], None]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A function that lets a recording note all input of the core, as the shell does."""
    step = coordinator.step

    def begin(recording: Recording) -> None:
        def noting(state: CoreState, now: float, observation: Observation, *rest: Any) -> Any:
            recording.note(state, now, observation)
            return step(state, now, observation, *rest)

        monkeypatch.setattr(coordinator, "step", noting)

    return begin


def kept(recording: Recording) -> Excerpt:
    excerpt = recording.excerpt()
    assert excerpt is not None
    return excerpt


def trained(nodes: int = 2) -> World:
    world = World(nodes=nodes)
    world.until("starting")
    world.train(10)
    return world


def hang(world: World) -> store.Incident:
    world.hang(2)
    world.until("gathering")
    return world.incidents[-1]


def hung(watch: Watch, recording: Recording | None = None) -> tuple[store.Incident, Recording]:
    """Return the incident of a hang, and its recording."""
    recording = recording or Recording()
    watch(recording)
    return hang(trained()), recording


def write(folder: Path, incident: store.Incident, recording: Recording) -> None:
    incident_folder.write_story(folder, incident)
    incident_folder.write_recording(folder, kept(recording), incident.verdict, dropped_ticks=0)


def test_a_recording_holds_no_secret_of_the_command_and_does_not_say_who_is_notified(
    watch: Watch, tmp_path: Path
) -> None:
    incident, recording = hung(watch)
    spec = kept(recording).base.spec
    spec.command[:] = ["train.py", "--token", "abc"]
    spec.notify.channels.add(name="team", webhook=store.WebhookChannel(url="https://chat/abc"))
    write(tmp_path, incident, recording)
    base = read_recording(tmp_path).base
    assert (list(base.spec.command), base.spec.HasField("notify")) == (["train.py", "--token", HIDDEN], False)
    assert list(spec.command) == ["train.py", "--token", "abc"]


@pytest.mark.parametrize("way", ["hang", "death", "lost node"])
def test_a_recording_leads_to_the_verdict_again(watch: Watch, tmp_path: Path, way: str) -> None:
    recording = Recording()
    watch(recording)
    world = trained()
    match way:
        case "hang":
            world.hang(2)
        case "death":
            world.end(5, signal=9)
        case "lost node":
            world.hang(7)
            del world.node_states["node1"]
    for _ in range(600):
        if world.incidents:
            break
        world.tick()
    write(tmp_path, world.incidents[-1], recording)
    ticks = len(kept(recording).ticks)
    result = replay(read_recording(tmp_path))
    assert (result.agrees, result.replayed, result.ticks) == (True, world.incidents[-1].verdict, ticks)


@pytest.mark.parametrize(
    ("path", "value", "agrees"),
    [
        ("culprits", [0], False),
        ("hang.ranks.0.activity", common.ACTIVITY_GIL_HELD, False),
        ("message", "rank 2 has been hung up", True),  # a text is no verdict
    ],
)
def test_a_replay_agrees_if_the_ticks_lead_to_the_data_of_the_verdict(
    watch: Watch, tmp_path: Path, path: str, value: object, agrees: bool
) -> None:
    incident, recording = hung(watch)
    write(tmp_path, changed(incident, f"verdict.{path}", value), recording)
    result = replay(read_recording(tmp_path))
    assert (result.agrees, result.replayed) == (agrees, incident.verdict)


def test_a_tick_names_only_nodes_that_have_changed_and_those_that_are_gone(watch: Watch) -> None:
    recording = Recording()
    world = trained(nodes=3)
    for node in world.node_states.values():
        del node.ranks[:]
    world.tick()
    watch(recording)
    world.tick()
    world.node_states["node1"].ready = not world.node_states["node1"].ready
    world.tick()
    del world.node_states["node2"]
    world.tick()
    ticks = [tick for data in kept(recording).ticks for tick in unframed(data)]
    assert [list(tick.changed_nodes) for tick in ticks] == [[], ["node1"], []]
    assert [list(tick.gone_nodes) for tick in ticks] == [[], [], ["node2"]]


def test_a_recording_holds_the_last_half_minute_and_not_much_more_than_one(watch: Watch) -> None:
    recording = Recording()
    watch(recording)
    world = trained()
    for _ in range(30):
        world.tick(seconds=STRETCH_S / 10)
        times = [tick.now_unix_s for data in kept(recording).ticks for tick in unframed(data)]
        assert times[-1] == world.now
        assert times[-1] - times[0] <= 2 * STRETCH_S
    assert times[-1] - times[0] >= STRETCH_S
    assert recording.dropped_ticks_total == 0


def test_what_does_not_fit_is_dropped_from_the_old_end_counted_and_the_rest_still_replays(
    watch: Watch, tmp_path: Path
) -> None:
    incident, recording = hung(watch, Recording(room_bytes=8_000))
    ticks = kept(recording).ticks
    assert sum(map(len, ticks)) <= 8_000
    assert recording.dropped_ticks_total > 0
    write(tmp_path, incident, recording)
    assert replay(read_recording(tmp_path)).agrees


def test_an_archive_is_read_without_being_unpacked(watch: Watch, tmp_path: Path) -> None:
    incident, recording = hung(watch)
    write(tmp_path / incident.id, incident, recording)
    with tarfile.open(tmp_path / "it.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / incident.id, incident.id)
    assert replay(read_recording(tmp_path / "it.tar.gz")).agrees


def test_what_is_no_recording_is_refused_in_one_line(watch: Watch, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="name an incident's folder or exported archive"):
        read_recording(tmp_path / "nothing")
    write(tmp_path, *hung(watch))
    (tmp_path / incident_folder.STATE).write_text('{"state": {}}')
    with pytest.raises(RecordingError, match=r"another version of Holdfast, or damaged: core.json names no format"):
        read_recording(tmp_path)


@pytest.mark.parametrize("name", ["state", "verdict"])
def test_a_recording_without_the_state_or_the_verdict_is_refused_in_one_line(
    watch: Watch, tmp_path: Path, name: str
) -> None:
    write(tmp_path, *hung(watch))
    data = json.loads((tmp_path / incident_folder.STATE).read_text())
    del data[name]
    (tmp_path / incident_folder.STATE).write_text(json.dumps(data))
    with pytest.raises(RecordingError, match=f"damaged: core.json names no {name}$"):
        read_recording(tmp_path)


def test_a_recording_of_an_earlier_format_is_refused_in_one_line_and_its_story_is_read() -> None:
    folder = Path(__file__).parents[2] / "data/before/incidents/before/0001-hung-collective"
    line = (
        f"{folder}: its recording has format 1, and this version of Holdfast replays format 5: use the version that"
        " recorded it; its story, incident.json, can still be read"
    )
    with pytest.raises(RecordingError, match=f"^{re.escape(line)}$"):
        read_recording(folder)
    story = parse_story((folder / STORY).read_bytes())
    assert (story.id, story.verdict.kind) == ("0001-hung-collective", store.VERDICT_KIND_HUNG_COLLECTIVE)
    assert (list(story.verdict.culprits), story.state) == ([1], store.INCIDENT_STATE_RECOVERED)


async def test_the_archive_writes_the_recording_of_a_new_verdict_once_and_the_story_always(
    watch: Watch, tmp_path: Path
) -> None:
    archive = IncidentArchive(tmp_path, "r")
    watch(archive.recording)
    world = trained()
    folder = tmp_path / "incidents" / "r" / hang(world).id
    archive.keep(world.incidents[-1])
    await until((folder / incident_folder.STATE).exists, "the recording is written")
    assert replay(read_recording(folder)).agrees
    written = (folder / incident_folder.STATE).stat().st_mtime_ns
    world.until("starting")
    archive.keep(world.incidents[-1])
    assert (archive.attempts_total, archive.failures_total) == (3, 0)
    assert (folder / incident_folder.STATE).stat().st_mtime_ns == written
    assert len(read_recording(folder).incident.actions) == len(world.incidents[-1].actions)


async def test_the_recordings_of_a_verdict_that_changes_are_written_one_after_the_other(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[list[int]] = []
    may_end = threading.Event()

    def write(_: Path, __: object, verdict: store.Verdict, **___: object) -> None:
        began.append(list(verdict.culprits))
        assert may_end.wait(PATIENCE_S)

    monkeypatch.setattr(incident_folder, "write_recording", write)
    archive = IncidentArchive(tmp_path, "r")
    watch(archive.recording)
    world = trained()
    incident = hang(world)
    archive.keep(incident)
    await until(lambda: bool(began), "the first recording is being written")
    later = store.Incident()
    later.CopyFrom(incident)
    later.verdict.culprits.append(7)
    archive.keep(later)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(began) == 1
    may_end.set()
    await until(lambda: len(began) == 2, "the second recording is written")
    assert began == [list(incident.verdict.culprits), list(later.verdict.culprits)]


async def test_a_leader_that_took_over_after_the_verdict_leaves_its_recording_alone(
    watch: Watch, tmp_path: Path
) -> None:
    world = trained()
    hang(world)
    archive = IncidentArchive(tmp_path, "r")
    watch(archive.recording)
    world.lose_leader()
    world.tick()
    archive.keep(world.incidents[-1])
    assert archive.attempts_total == 1


async def test_the_folder_of_an_earlier_run_of_the_same_name_is_set_aside(tmp_path: Path) -> None:
    for detected_unix_s in (1000.0, 2000.0, 2000.0):
        IncidentArchive(tmp_path, "r").keep(store.Incident(id="0001-dead-rank", detected_unix_s=detected_unix_s))
    names = sorted(path.name for path in (tmp_path / "incidents" / "r").iterdir())
    assert names == ["0001-dead-rank", "0001-dead-rank.1000"]


async def test_a_disk_that_refuses_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("in the way")
    archive = IncidentArchive(tmp_path, "r")
    archive.keep(store.Incident(id="0001-dead-rank"))
    assert (archive.attempts_total, archive.failures_total) == (1, 1)


@pytest.mark.parametrize(
    "junk", [b"", b"\xff\xfe", b"[1, 2]", b"null", b'"x"', b'{"id": 3}', b"[" * 100_000, b'{"detected_unix_s": "x"}']
)
async def test_the_folder_of_a_damaged_story_is_set_aside(tmp_path: Path, junk: bytes) -> None:
    folder = tmp_path / "incidents" / "r" / "0001-dead-rank"
    folder.mkdir(parents=True)
    (folder / STORY).write_bytes(junk)
    archive = IncidentArchive(tmp_path, "r")
    archive.keep(store.Incident(id="0001-dead-rank", detected_unix_s=2000.0))
    assert (archive.attempts_total, archive.failures_total) == (1, 0)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.damaged.2000"]


async def test_an_archive_that_fails_in_an_unforeseen_way_stops_nothing(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RecursionError("unforeseen")

    monkeypatch.setattr(incident_folder, "write_story", fail)
    monkeypatch.setattr(incident_folder, "write_recording", fail)
    archive = IncidentArchive(tmp_path, "r")
    watch(archive.recording)
    world = trained()
    hang(world)
    archive.keep(world.incidents[-1])
    await until(lambda: archive.failures_total == 2, "both failures are counted")
    assert sum("cannot be written" in record.getMessage() for record in caplog.records) == 1


async def test_what_the_core_failed_on_is_kept_once(tmp_path: Path) -> None:
    world = trained()
    archive = IncidentArchive(tmp_path, "r")
    for reason in ("first", "second"):
        try:
            raise KeyError(reason)
        except KeyError as error:
            archive.keep_failure(world.state, world.now, Observation(nodes=world.state.nodes), error)
    folder = tmp_path / "failures" / "r"
    await until((folder / incident_folder.STATE).exists, "it is written")
    assert "KeyError: 'first'" in (folder / incident_folder.TRACEBACK).read_text()
    assert archive.attempts_total == 1
