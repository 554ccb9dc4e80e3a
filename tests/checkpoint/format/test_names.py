import os
from pathlib import Path

import pytest

from holdfast_checkpoint.format.durable import NewFile, writer_of
from holdfast_checkpoint.format.shard_index import step_directory, step_of


@pytest.mark.parametrize("step", [0, 40, 123_456_789_012])
def test_the_folder_of_a_step_names_it(step: int) -> None:
    assert step_of(step_directory(Path(), step).name) == step


@pytest.mark.parametrize("name", ["step-40", "step-00000040.tmp", "xstep-00000040", "step-", "history-0002", ""])
def test_other_names_are_of_no_step(name: str) -> None:
    assert step_of(name) is None


def test_a_temporary_file_names_its_writer(tmp_path: Path) -> None:
    with NewFile(tmp_path / "rank-00000.shard") as new:
        assert writer_of(new.path.name) == os.getpid()
    assert writer_of("rank-00000.shard.another-host-x.1.2.tmp") is None
    assert writer_of("rank-00000.shard") is None
