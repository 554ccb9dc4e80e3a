import errno
from pathlib import Path

import pytest

from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.supervised_folder import SupervisedFolder
from holdfast_cli.run_folder.record import RunRecord, load_record


def test_a_full_disk_does_not_end_the_run_and_the_record_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory").mkdir()
    options = LocalRunOptions(run="full", command=("x",), directory=tmp_path, shm_directory=tmp_path / "memory")
    folder = SupervisedFolder(options)

    def fail(_: RunRecord) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunRecord, "save", fail)
        folder.note({"agent": 7}, {})
    folder.note({"agent": 7}, {})
    record = load_record(tmp_path / "full")
    folder.leave("", None)
    assert record is not None
    assert record.components == {"agent": {"pid": 7}}
