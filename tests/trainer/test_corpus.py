import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer import corpus
from holdfast_trainer.config import DataConfig

BUILD = """
import sys
from holdfast_trainer import corpus
from holdfast_trainer.config import DataConfig
print(corpus.prepare(DataConfig(source=sys.argv[1], cache_directory=sys.argv[2])).digest)
"""


def data(source: Path | str, tmp_path: Path, *, sequence: int = 16) -> DataConfig:
    return DataConfig(source=str(source), cache_directory=tmp_path / "cache", sequence=sequence)


def test_whole_files_go_to_one_part_in_the_order_of_their_names(text_folder: Path, tmp_path: Path) -> None:
    prepared = corpus.prepare(data(text_folder, tmp_path))
    names = sorted(path.name for path in text_folder.iterdir())
    held_out = [name for name in names if corpus.in_validation_part(name)]
    assert held_out
    assert prepared.validation.read_bytes() == b"".join((text_folder / name).read_bytes() for name in held_out)
    assert prepared.train.read_bytes() == b"".join(
        (text_folder / name).read_bytes() for name in names if name not in held_out
    )
    assert (prepared.train_bytes, prepared.validation_bytes) == (
        prepared.train.stat().st_size,
        prepared.validation.stat().st_size,
    )


def test_a_file_stays_in_its_part_when_others_are_added(text_folder: Path, tmp_path: Path) -> None:
    before = corpus.prepare(data(text_folder, tmp_path))
    (text_folder / "new.txt").write_text("x" * 1000)
    after = corpus.prepare(data(text_folder, tmp_path))
    assert after.directory != before.directory
    if corpus.in_validation_part("new.txt"):
        assert after.train.read_bytes() == before.train.read_bytes()
    else:
        assert after.validation.read_bytes() == before.validation.read_bytes()


def test_single_file_is_cut_near_its_end(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes(range(200)) * 10)
    prepared = corpus.prepare(data(path, tmp_path))
    assert prepared.train.read_bytes() + prepared.validation.read_bytes() == path.read_bytes()
    assert prepared.validation_bytes == 100


def test_standard_library_is_taken_without_tests_and_installed_packages(tmp_path: Path) -> None:
    prepared = corpus.prepare(data("stdlib", tmp_path))
    text = prepared.train.read_bytes() + prepared.validation.read_bytes()
    assert b"class JSONDecoder" in text
    assert b"class TestCase(unittest.TestCase)" not in text
    assert b"def fully_shard" not in text
    assert 0.01 < prepared.validation_bytes / len(text) < 0.15


def test_corpus_is_built_once(text_folder: Path, tmp_path: Path) -> None:
    first = corpus.prepare(data(text_folder, tmp_path))
    built_ns = first.train.stat().st_mtime_ns
    assert corpus.prepare(data(text_folder, tmp_path)) == first
    assert first.train.stat().st_mtime_ns == built_ns


def test_racing_ranks_agree_on_one_corpus(text_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(text_folder), str(tmp_path / "cache")]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {racer.communicate(timeout=30)[0] for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert digests == {corpus.prepare(data(text_folder, tmp_path)).digest + "\n"}
    assert [path.suffix for path in sorted((tmp_path / "cache").iterdir())] == ["", ".lock"]


def test_what_a_killed_builder_left_is_swept(text_folder: Path, tmp_path: Path) -> None:
    prepared = corpus.prepare(data(text_folder, tmp_path))
    prepared.directory.rename(prepared.directory.with_name(prepared.directory.name + ".building"))
    assert corpus.prepare(data(text_folder, tmp_path)) == prepared


@pytest.mark.parametrize(
    ("source", "sequence", "message"),
    [
        ("missing", 16, "data.source .*missing: no such file or folder: give `stdlib` or a path"),
        ("empty", 16, "data.source .*empty: no text in .*: give a path to a text file or folder"),
        ("short", 16, "data.source .*short: 10 bytes of training text are too few for data.sequence = 16: "),
    ],
)
def test_unusable_source_is_refused(tmp_path: Path, source: str, sequence: int, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short").write_bytes(b"0123456789")
    with pytest.raises(ConfigurationError, match=message):
        corpus.prepare(data(tmp_path / source, tmp_path, sequence=sequence))


def test_cache_that_cannot_be_written_is_refused(text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(ConfigurationError, match=r"^data\.cache_directory .*cache: "):
        corpus.prepare(data(text_folder, tmp_path))
