"""The checkpoints of a run: histories, chain, sizes and marks; and the release of a kept one."""

import time
from pathlib import Path

import pytest

from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_checkpoint.format.shard_index import step_directory
from holdfast_checkpoint.format.verification import Verification, files_digest_in, manifest_digest, write_verification
from holdfast_checkpoint.store.directory import CheckpointDirectory
from tests.cli.top.conftest import Watch, watching_local
from tests.support.snapshots import Snapshots
from tests.support.statuses import healthy


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointDirectory:
    """Checkpoints of steps 10, 20 and 30; that of step 20 is kept."""
    slots = tmp_path / "slots"
    slots.mkdir()
    directory = CheckpointDirectory(tmp_path / "checkpoints", kept=5)
    for step in (10, 20, 30):
        Snapshots(slots).commit(directory, step)
    keeping.keep(tmp_path / "checkpoints" / "step-00000020", "incident \x1b[2J[b]7")
    return directory


async def test_a_kept_checkpoint_is_released_after_a_question(
    folder: Path, tmp_path: Path, checkpoints: CheckpointDirectory
) -> None:
    place = tmp_path / "checkpoints"
    async with watching_local(folder, healthy(), checkpoint_directory=str(place)) as top:
        await top.press("p")
        await top.shows("checkpoints: 3")
        await top.shows("history 1, from the seed")
        await top.shows("kept: incident [b]7")
        lines = [line for line in top.screen_text.splitlines() if "step " in line]
        assert [int(line.split()[1]) for line in lines] == [10, 20, 30]
        assert all((" full" in line and " B" in line) or " kB" in line for line in lines)
        await top.press("r")
        await top.shows("this checkpoint is not kept")
        await top.press("up", "r")
        await top.shows("Release the checkpoint of step 20? It is kept for:")
        assert "incident [b]7." in top.screen_text
        await top.press("n")
        assert keeping.kept_reason(place / "step-00000020") is not None
        await top.press("r")
        await top.shows("y: yes")
        await top.press("y")
        await top.shows("step 20 is released")
        await top.hides("kept: incident")
        assert keeping.kept_reason(place / "step-00000020") is None


async def test_new_checkpoints_are_seen_when_nodes_report_them(
    folder: Path, tmp_path: Path, checkpoints: CheckpointDirectory
) -> None:
    async with watching_local(folder, healthy(), checkpoint_directory=str(tmp_path / "checkpoints")) as top:
        await top.press("p")
        await top.shows("checkpoints: 3")
        Snapshots(tmp_path / "slots").commit(checkpoints, 40)
        status = healthy()
        status.checkpoints.extend([10, 20, 30, 40])
        top.control.status = status
        await top.shows("checkpoints: 4")


async def test_what_verify_has_found_is_shown(folder: Path, tmp_path: Path, checkpoints: CheckpointDirectory) -> None:
    place = tmp_path / "checkpoints"
    for step, damages in ((10, ()), (30, ("rank-00000.shard: damaged",))):
        directory = step_directory(place, step)
        manifest = load_manifest(directory)
        files = files_digest_in(place, manifest)
        assert files is not None
        facts = {"manifest_digest": manifest_digest(manifest), "files_digest": files}
        write_verification(directory, Verification(verified_unix_s=1.8e9, read_bytes=1, damages=damages, **facts))
    async with watching_local(folder, healthy(), checkpoint_directory=str(place)) as top:
        await top.press("p")
        await top.shows("checkpoints: 3")
        lines = {int(line.split()[1]): line for line in top.screen_text.splitlines() if "step " in line}
        when = time.strftime("%m-%d %H:%M", time.localtime(1.8e9))
        assert f"verified {when}" in lines[10]
        assert "verified" not in lines[20]
        assert f"damaged, seen {when}" in lines[30]


@pytest.mark.parametrize(
    ("location", "note"),
    [
        ("s3://bucket/run", "the checkpoints are in an object store"),
        ("/none/at/all", "this machine does not see the folder"),
        ("", "the run has named no place of checkpoints"),
    ],
)
async def test_of_a_place_that_is_not_here_the_reported_steps_are_shown(watch: Watch, location: str, note: str) -> None:
    status = healthy()
    status.settings.checkpoint_directory = location
    status.checkpoints.extend([19, 39])
    async with watch(status, size=(120, 24)) as top:
        await top.press("p")
        await top.shows(note)
        await top.shows("step 39  reported by nodes")
        await top.press("r")
        await top.shows("this checkpoint is not kept")


async def test_a_checkpoint_is_requested_from_its_screen_too(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.press("p")
        await top.shows("c:take one now")
        await top.press("c")
        await top.shows("y: yes")
        await top.press("y")
        await top.shows("the daemon will take a checkpoint of step 43")
