"""The page of the checkpoints and the release of one, over HTTP: what is offered is what is kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.format.history import FIRST, MARKER, HistoryRecord, record_name
from holdfast_checkpoint.format.manifest import MANIFEST, load_manifest
from holdfast_checkpoint.format.shard_index import shard_path, step_directory
from holdfast_checkpoint.format.verification import Verification, files_digest_in, manifest_digest, write_verification
from holdfast_checkpoint.store.histories import FolderPlace, Histories
from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.rows import CheckpointRow
from holdfast_proto.v1 import store_pb2 as store
from tests.support.console_server import SimulatedConsole

RUN = "/api/runs/llama-7b"


@pytest.fixture
def folder(console: SimulatedConsole) -> Path:
    """Checkpoints of steps 10 and 20, next to the console."""
    return console.directory / "checkpoints"


def listed(console: SimulatedConsole) -> dict[int, dict[str, Any]]:
    """Return the checkpoints by step."""
    histories = console.get(f"{RUN}/checkpoints")["histories"]
    return {one["step"]: one for history in histories for one in history["checkpoints"]}


def kept(console: SimulatedConsole) -> list[int]:
    """Return the steps that the dialog offers."""
    return sorted(step for step, one in listed(console).items() if one["kept"] and not one["left"])


def release(console: SimulatedConsole, step: int) -> None:
    console.request(f"{RUN}/actions/release", {"step": step}).close()


def note(folder: Path, step: int, *damages: str) -> Verification:
    """Leave the mark of `holdfast checkpoint verify`."""
    directory = step_directory(folder, step)
    manifest = load_manifest(directory)
    files = files_digest_in(folder, manifest)
    assert files is not None
    mark = Verification(
        verified_unix_s=1_790_000_500.0,
        manifest_digest=manifest_digest(manifest),
        files_digest=files,
        read_bytes=manifest.stored_bytes,
        damages=damages,
    )
    write_verification(directory, mark)
    return mark


def begin_history(folder: Path) -> Histories[int]:
    """Begin a second history after step 10."""
    histories = Histories(FolderPlace(folder), lambda number: number)
    histories.refresh()
    histories.begin(HistoryRecord(number=FIRST + 1, run="llama-7b", parent=FIRST, parent_step=10))
    return histories


def pin(console: SimulatedConsole, step: int) -> None:
    """Let the core's record say that Holdfast has had a checkpoint kept in this start."""

    def change() -> None:
        assert console.run.state is not None
        pinned = store.PinnedCheckpoint(kind=store.VERDICT_KIND_LOSS_SPIKE, step=step)
        console.run.state.record.pinned.append(pinned)

    console.on_loop(change)


def test_a_released_step_is_offered_no_more(console: SimulatedConsole, folder: Path) -> None:
    for step in (10, 20):
        keeping.keep(step_directory(folder, step), "a loss spike")
        pin(console, step)
    release(console, 10)
    assert kept(console) == [20]


def test_a_step_that_was_kept_by_an_earlier_start_can_be_released(console: SimulatedConsole, folder: Path) -> None:
    keeping.keep(step_directory(folder, 10), "a loss spike of an earlier start")
    assert console.run.state is not None
    assert not console.run.state.record.pinned
    assert kept(console) == [10]
    release(console, 10)
    assert kept(console) == []


def test_a_step_that_an_operator_released_elsewhere_is_not_offered(console: SimulatedConsole, folder: Path) -> None:
    keeping.keep(step_directory(folder, 10), "a loss spike")
    pin(console, 10)
    keeping.release(step_directory(folder, 10))  # as `holdfast checkpoint release` does
    assert kept(console) == []


def test_of_a_folder_elsewhere_only_what_holdfast_had_kept_is_known(console: SimulatedConsole, folder: Path) -> None:
    pin(console, 10)
    folder.rename(folder.with_name("elsewhere"))
    note = console.get(f"{RUN}/checkpoints")["note"]
    assert note == "this machine does not see the folder: the steps are those that nodes report"
    shown = listed(console)
    assert list(shown) == [10, 20]
    assert (shown[10]["kept"], shown[10]["kept_for"]) == (True, "an incident, unless it was released since")
    assert [shown[20][name] for name in ("kept", "verified", "form")] == [None, None, ""]


def test_of_steps_that_nodes_report_the_sizes_are_those_of_their_commits(
    console: SimulatedConsole, folder: Path
) -> None:
    def commit(instance: str, place: str, step: int, stored_bytes: int, unix_s: float) -> None:
        assert console.run.state is not None
        spec = store.RunSpec()
        spec.CopyFrom(console.run.state.spec)
        spec.checkpoint_directory = place
        state = replace(console.run.state, spec=spec)
        row = CheckpointRow(1, step, unix_s, 1000, stored_bytes, 0.5)
        HistoryFile(console.directory, "llama-7b").write([(instance, StartRows(checkpoints=[row], state=state))])

    commit("first", str(folder), 10, 300, 1_790_000_000.0)
    commit("second", str(folder), 10, 400, 1_790_000_100.0)
    commit("third", "/another/place", 10, 500, 1_790_000_200.0)
    folder.rename(folder.with_name("elsewhere"))
    shown = listed(console)
    assert [shown[10][name] for name in ("bytes", "raw_bytes", "committed_unix_s")] == [400, 1000, 1_790_000_100.0]
    assert shown[20]["bytes"] is None


def test_a_checkpoint_that_others_need_says_so(console: SimulatedConsole, folder: Path) -> None:
    manifest = load_manifest(step_directory(folder, 20))
    (step_directory(folder, 20) / MANIFEST).write_bytes(replace(manifest, bases=(10,)).encode())
    shown = listed(console)
    assert (shown[10]["needed_by"], shown[20]["needed_by"], shown[20]["base_step"]) == ([20], [], 10)


def test_a_checkpoint_of_a_line_that_was_left_is_shown_as_such(console: SimulatedConsole, folder: Path) -> None:
    begin_history(folder)
    assert (folder / record_name(FIRST + 1)).exists()
    assert list(folder.rglob(MARKER))
    assert {step: one["left"] for step, one in listed(console).items()} == {10: False, 20: True}


def test_a_history_names_its_parent_and_the_first_has_none(console: SimulatedConsole, folder: Path) -> None:
    def parents() -> list[int | None]:
        return [one["parent"] for one in console.get(f"{RUN}/checkpoints")["histories"]]

    assert parents() == [0]  # it has no record
    histories = begin_history(folder)
    histories.begin(HistoryRecord(number=FIRST + 2, run="llama-7b"))
    assert parents() == [0, FIRST, 0]
    folder.rename(folder.with_name("elsewhere"))
    assert parents() == [None]  # nodes do not report it


def test_what_verify_has_found_is_shown_until_a_file_changes(console: SimulatedConsole, folder: Path) -> None:
    mark = note(folder, 10)
    note(folder, 20, "rank-00000.shard is damaged: tensor model.weight")
    shown = listed(console)
    assert (shown[10]["verified"], shown[10]["verified_unix_s"]) == (True, mark.verified_unix_s)
    assert (shown[20]["verified"], len(shown[20]["damages"])) == (False, 1)
    shard = shard_path(step_directory(folder, 10), 0)
    shard.write_bytes(shard.read_bytes())
    assert listed(console)[10]["verified"] is None


def test_a_lost_file_is_named(console: SimulatedConsole, folder: Path) -> None:
    note(folder, 10)
    shard_path(step_directory(folder, 10), 1).unlink()
    shown = listed(console)[10]
    assert "rank-00001.shard" in shown["problem"]
    assert shown["verified"] is None
