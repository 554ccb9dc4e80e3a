"""Random histories of a run: at every moment the newest checkpoint that was reported, or a newer one, loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_checkpoint.checkpoint_errors import CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format import manifest
from holdfast_checkpoint.format.durable import remove_file
from holdfast_checkpoint.format.history import folder_name
from holdfast_checkpoint.format.manifest import MANIFEST
from holdfast_checkpoint.store import retention
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.histories import Histories, StorePlace
from holdfast_checkpoint.store.locations import HistoryCheckpoints
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints, open_checkpoints
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints
from holdfast_core.checkpointing import restore_point
from holdfast_proto.v1 import store_pb2 as store
from tests.support.history_machine import KEPT, HistoryMachine
from tests.support.object_places import Place
from tests.support.snapshots import Snapshots
from tests.support.vanishing_files import Bucket, Folder

pytestmark = pytest.mark.system

ACTIONS = 40
SEEDS = range(10)
MORE_SEEDS = range(10, 60)
STORE_SEEDS = range(4)
MORE_STORE_SEEDS = range(4, 20)


@pytest.fixture
def machine(tmp_path: Path, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], HistoryMachine]:
    """A function that makes a machine whose checkpoints are in a folder."""

    def make(seed: int) -> HistoryMachine:
        folder = tmp_path / f"machine-{seed}"
        for name in ("shm", "slots"):
            (folder / name).mkdir(parents=True)
        disk = Folder(folder / "checkpoints")

        def open_run(run: str) -> RunCheckpoints:
            return open_checkpoints(str(disk.path), folder / "staging", KEPT, run=run)

        machine = HistoryMachine(seed, folder, snapshots, open_run, monkeypatch=monkeypatch, storage=disk)
        machine.second = Place("--checkpoints-secondary")
        return machine

    return make


@pytest.fixture
def stored_machine(
    tmp_path: Path, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], HistoryMachine]:
    """A function that makes a machine whose checkpoints are in an object store."""

    def make(seed: int) -> HistoryMachine:
        folder, place = tmp_path / f"stored-{seed}", Place()
        for name in ("shm", "slots"):
            (folder / name).mkdir(parents=True)

        def open_run(run: str) -> RunCheckpoints:
            remote = place.open()

            def open_part(number: int) -> HistoryCheckpoints:
                return StagedCheckpoints(remote.of_history(number), folder / "staging" / folder_name(number), KEPT)

            return RunCheckpoints(Histories(StorePlace(remote.store), open_part), run, folder / "staging", KEPT)

        machine = HistoryMachine(seed, folder, snapshots, open_run, monkeypatch=monkeypatch, storage=Bucket(place))
        place.files.changes = lambda change: machine.crashes.call(change, machine.random)
        return machine

    return make


def drive(machine: HistoryMachine, actions: int = ACTIONS) -> None:
    """Let a machine act. The log of a failure lists its actions."""
    try:
        for _ in range(actions):
            machine.act()
    except BaseException as error:
        error.add_note("\n".join(machine.log))
        raise
    finally:
        machine._stop()


@pytest.mark.safety
@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in MORE_SEEDS)])
def test_the_newest_reported_checkpoint_in_a_folder_loads_at_every_moment(
    machine: Callable[[int], HistoryMachine], seed: int
) -> None:
    drive(machine(seed))


@pytest.mark.safety
@pytest.mark.parametrize(
    "seed", [*STORE_SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in MORE_STORE_SEEDS)]
)
def test_the_newest_reported_checkpoint_in_a_store_loads_at_every_moment(
    stored_machine: Callable[[int], HistoryMachine], seed: int
) -> None:
    drive(stored_machine(seed))


def unreadable_if_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a missing file as a damaged one, and start from the seed if nothing is left, as earlier versions did."""
    fetch = CheckpointDirectory.fetch

    def unreadable(self: CheckpointDirectory, step: int, *arguments: Any, **options: Any) -> Path:
        try:
            return fetch(self, step, *arguments, **options)
        except CheckpointUnavailable as error:
            raise CheckpointUnreadable(str(error)) from error

    choose = restore_point.choose
    seed = restore_point.RestorePoint(store.SOURCE_SEED, -1)
    monkeypatch.setattr(CheckpointDirectory, "fetch", unreadable)
    monkeypatch.setattr(restore_point, "choose", lambda *arguments: choose(*arguments) or seed)


def one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run that went back overwrite what it had committed, as earlier versions did."""

    def withdraw(directory: Path, _index: object) -> None:
        remove_file(directory / MANIFEST)

    monkeypatch.setattr(CheckpointInventory, "begin_history", lambda _self, _history: None)
    monkeypatch.setattr(manifest, "_check_manifest", withdraw)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a checkpoint that has vanished as one that never existed."""
    monkeypatch.setattr(KnownCheckpoints, "vanished", lambda *_arguments: set())
    monkeypatch.setattr(KnownCheckpoints, "check_history", lambda *_arguments: None)


def spare_no_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a proven checkpoint like any other, as earlier versions did."""
    monkeypatch.setattr(retention, "_newest", lambda _steps: set())


@pytest.mark.safety
@pytest.mark.parametrize(
    ("mutation", "kind"),
    [
        (unreadable_if_missing, "machine"),
        (one_place, "machine"),
        (forget, "machine"),
        (spare_no_proven, "machine"),
        (unreadable_if_missing, "stored_machine"),
        (forget, "stored_machine"),
        (spare_no_proven, "stored_machine"),
    ],
)
def test_a_machine_without_one_of_the_rules_loses_a_checkpoint(
    mutation: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = request.getfixturevalue(kind)
    mutation(monkeypatch)
    with pytest.raises(AssertionError, match=r"is lost|is not chosen|from the seed"):
        for seed in range(150):
            drive(make(seed))
