from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast_agent.checkpoint import CheckpointDirectory
from holdfast_agent.shard import read_shard, write_shard
from holdfast_proto.checkpoint import durable
from holdfast_proto.snapshot import Slot
from tests.agent.checkpoints.disk import RecordingOs, ends

if TYPE_CHECKING:
    from tests.agent.checkpoints.conftest import Snapshots

RUN = "run"
RANKS = 2


def tensors(rank: int, step: int, generation: int) -> dict[str, bytes]:
    """A state that pays to be stored as a difference, and tells whose it is."""
    return {"common": bytes(range(251)) * 12, "own": f"{rank} {step} {generation}".encode()}


def test_newest_committed_loads_whenever_the_power_is_cut_or_the_writer_killed(
    snapshots: "Snapshots", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = CheckpointDirectory(tmp_path / "checkpoints", kept=3)
    record = RecordingOs()
    committed: list[tuple[int, int, int]] = []  # calls done, step, generation

    def save(step: int, generation: int) -> None:
        for rank in range(RANKS):
            base = checkpoints.base_for(step, run=RUN, world_size=RANKS, generation=generation, full_every=3)
            slot = snapshots.slot(rank, step, generation=generation, tensors=tensors(rank, step, generation))
            write_shard(slot, checkpoints.step_directory(step), run=RUN, world_size=RANKS, base_step=base)
        assert checkpoints.commit_if_complete(step, RANKS, RUN) is not None
        committed.append((len(record.calls), step, generation))

    with monkeypatch.context() as patched:
        patched.setattr(durable, "os", record)
        for step in (10, 20, 30, 40, 50):
            save(step, generation=1)
        for step in (40, 50, 60, 70):  # the run went back to 30, and 50 builds on 40
            save(step, generation=2)
    manifests = [checkpoints.load_manifest(step) for step in checkpoints.committed()]
    assert [(manifest.step, manifest.bases) for manifest in manifests] == [(40, ()), (50, (40,)), (60, (40,)), (70, ())]

    left = tmp_path / "left"
    for done in ends(record.calls, left):
        found = CheckpointDirectory(left / checkpoints.path.relative_to("/"), kept=3)
        steps = found.committed()
        surely = [step for calls, step, _ in committed if calls <= done]
        if surely:
            assert steps
            assert steps[-1] >= min(surely[-1], 30)
        if steps:
            _expect_whole(found, steps[-1], snapshots)


def _expect_whole(checkpoints: CheckpointDirectory, step: int, snapshots: "Snapshots") -> None:
    manifest = checkpoints.verify(step)
    target = snapshots.empty()
    for rank in range(RANKS):
        read_shard(checkpoints.step_directory(step), rank, target, generation=9)
        with Slot(target) as slot:
            found = {entry.name: bytes(slot.tensor_bytes(entry)) for entry in slot.meta().tensors}
        assert found == tensors(rank, step, manifest.generation)
    target.unlink()
