"""A damaged record of a run is one line that names the file, and hides no other run."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_cli.errors import CommandError
from holdfast_cli.run_folder.record import find_record, find_records, load_record
from tests.cli.conftest import run_record

Damage = Callable[[Path], object]


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_in_its_place(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


def content(data: bytes) -> Damage:
    return lambda path: path.write_bytes(data)


def changed(**fields: object) -> Damage:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    "damage",
    [
        content(b""),
        content(bytes(4096)),
        content(b'{"run": "bad'),
        content(b"\xff\xfe"),
        content(b"[1]"),
        content(b"7"),
        content(b"[" * 100_000),
        content(b'{"pid": ' + b"9" * 5000 + b"}"),
        changed(pid="one"),
        changed(created_unix_s=None),
        changed(created_unix_s=float("nan")),
        changed(components={"agent": 7}),
        changed(components={"agent": {"pid": "7"}}),
        changed(components={"agent": {"pid": -1}}),
        changed(distrust=""),
        changed(field_of_a_later_version=1),
        huge,
        folder_in_its_place,
        pipe_in_its_place,
    ],
)
def test_a_damaged_record_is_one_line_and_hides_no_other_run(
    damage: Damage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        run_record(tmp_path / name, run=name).save()
    damage(tmp_path / "bad" / "run.json")
    assert [record.run for record in find_records(tmp_path)] == ["good"]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"holdfast: {tmp_path}/bad/run.json") and "remove" in line
    assert find_record(tmp_path, "good").run == "good"
    with pytest.raises(CommandError) as caught:
        find_record(tmp_path, "bad")
    assert f"holdfast: {caught.value}" == line
    assert load_record(tmp_path / "bad") is None


def test_a_damaged_record_alone_is_the_error(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").touch()
    with pytest.raises(CommandError, match=r"bad/run\.json is damaged, or of another version"):
        find_record(tmp_path, None)
