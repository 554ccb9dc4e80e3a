import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config_sections import DataConfig
from holdfast_trainer.data import corpus
from holdfast_trainer.data.corpus import Corpus
from holdfast_trainer.data.recipe import Recipe
from holdfast_trainer.data.sources import in_validation_part
from holdfast_trainer.data.tokenizer import BYTES_PER_TOKEN
from tests.support.programs import package

BUILD = """
import sys
from holdfast_trainer.config import DataConfig
from holdfast_trainer.data import corpus
print(corpus.prepare(DataConfig(source=sys.argv[1], cache_directory=sys.argv[2]), vocabulary=256))
"""


def prepare(source: Path | str, folder: Path, *, vocabulary: int = 256, **settings: Any) -> Corpus:
    settings = {"sequence": 16, "cache_directory": folder / "cache", "overlap_limit": 1.0, **settings}
    return corpus.prepare(DataConfig(source=str(source), **settings), vocabulary=vocabulary)


def train_bytes(prepared: Corpus) -> bytes:
    return prepared.train.map().tobytes()


def validation_bytes(prepared: Corpus) -> bytes:
    return prepared.validation.map().tobytes()


def test_whole_files_go_to_one_part_in_the_order_of_their_names(text_folder: Path, tmp_path: Path) -> None:
    prepared = prepare(text_folder, tmp_path, validation_share=0.2)
    names = sorted(path.name for path in text_folder.iterdir())
    held_out = [name for name in names if in_validation_part(name, 0.2)]
    assert len(held_out) > 3
    assert validation_bytes(prepared) == b"".join((text_folder / name).read_bytes() for name in held_out)
    kept = [name for name in names if name not in held_out]
    assert train_bytes(prepared) == b"".join((text_folder / name).read_bytes() for name in kept)


def test_a_file_stays_in_its_part_when_others_are_added(text_folder: Path, tmp_path: Path) -> None:
    before = prepare(text_folder, tmp_path)
    (text_folder / "new.txt").write_text("x" * 1000)
    after = prepare(text_folder, tmp_path)
    assert after.train.path.parent != before.train.path.parent
    if in_validation_part("new.txt", 0.05):
        assert train_bytes(after) == train_bytes(before)
    else:
        assert validation_bytes(after) == validation_bytes(before)


def test_single_file_is_cut_near_its_end(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes(range(200)) * 10)
    prepared = prepare(path, tmp_path)
    assert train_bytes(prepared) + validation_bytes(prepared) == path.read_bytes()
    assert prepared.validation.count == 100


def test_validation_source_leaves_all_of_the_other_to_training(text_folder: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("Some other text. " * 10)
    prepared = prepare(text_folder, tmp_path, validation=str(held_out))
    assert validation_bytes(prepared) == held_out.read_bytes()
    assert train_bytes(prepared) == b"".join(path.read_bytes() for path in sorted(text_folder.iterdir()))


def test_standard_library_is_taken_without_tests_and_installed_packages(tmp_path: Path) -> None:
    prepared = prepare("stdlib", tmp_path)
    text = train_bytes(prepared) + validation_bytes(prepared)
    assert b"class JSONDecoder" in text
    assert b"class TestCase(unittest.TestCase)" not in text
    assert b"def fully_shard" not in text
    assert 0.01 < prepared.validation.count / len(text) < 0.15


def test_corpus_is_built_once(text_folder: Path, tmp_path: Path) -> None:
    first = prepare(text_folder, tmp_path)
    built_ns = first.train.path.stat().st_mtime_ns
    assert prepare(text_folder, tmp_path) == first
    assert first.train.path.stat().st_mtime_ns == built_ns


def test_racing_ranks_agree_on_one_corpus(text_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(text_folder), str(tmp_path / "cache")]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = {racer.communicate(timeout=30)[0] for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert printed == {f"{prepare(text_folder, tmp_path)}\n"}
    assert [path.suffix for path in sorted((tmp_path / "cache").iterdir())] == ["", ".lock"]


def test_what_a_killed_builder_left_is_swept(text_folder: Path, tmp_path: Path) -> None:
    prepared = prepare(text_folder, tmp_path)
    directory = prepared.train.path.parent
    directory.rename(directory.with_name(directory.name + ".building"))
    assert prepare(text_folder, tmp_path) == prepared


def test_token_file_is_mapped_and_not_copied(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype=np.uint32)
    np.save(tmp_path / "tokens.npy", tokens)
    prepared = prepare(tmp_path / "tokens.npy", tmp_path, vocabulary=1000)
    assert prepared.train.path == prepared.validation.path == tmp_path / "tokens.npy"
    assert prepared.train.map().tolist() == list(range(950))
    assert prepared.validation.map().tolist() == list(range(950, 1000))
    assert sorted(path.name for path in tmp_path.glob("cache/*/*")) == ["corpus.json", "overlap-13.json"]


def test_training_and_validation_can_be_token_files_of_their_own(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint32).tofile(tmp_path / "train.bin")
    np.save(tmp_path / "validation.npy", np.arange(100, dtype=np.uint16))
    settings: Any = {"validation": str(tmp_path / "validation.npy"), "token_dtype": "uint32", "tokenizer": "none"}
    prepared = prepare(tmp_path / "train.bin", tmp_path, vocabulary=1000, **settings)
    assert (prepared.train.count, prepared.validation.count) == (1000, 100)
    assert (prepared.train.dtype, prepared.validation.dtype) == ("uint32", "uint16")


def test_tokenized_corpus_is_cached_by_the_tokenizer(text_folder: Path, tmp_path: Path) -> None:
    library = package("tokenizers")
    words = {"[UNK]": 0, "The": 1, "quick": 2, "dog": 3}
    paths = [tmp_path / "few.json", tmp_path / "more.json"]
    for path, vocabulary in zip(paths, [words, {**words, "fox": 70000}], strict=True):
        levels = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="[UNK]"))
        levels.pre_tokenizer = library.pre_tokenizers.Whitespace()
        levels.save(str(path))
    few, more = [prepare(text_folder, tmp_path, tokenizer=str(path), vocabulary=70001) for path in paths]
    assert (few.train.dtype, few.largest_id) == ("uint16", 3)
    assert (more.train.dtype, more.largest_id) == ("uint32", 70000)
    assert few.train.count == more.train.count
    assert prepare(text_folder, tmp_path, tokenizer=str(paths[0]), vocabulary=70001) == few
    with pytest.raises(ConfigurationError, match=r"^model\.vocabulary is 256, but data\.tokenizer .* has 70001 tokens"):
        prepare(text_folder, tmp_path, tokenizer=str(paths[1]))


def test_each_text_file_ends_with_the_token_that_ends_a_document(text_folder: Path, tmp_path: Path) -> None:
    plain = prepare(text_folder, tmp_path)
    apart = prepare(text_folder, tmp_path, document_end=0)
    assert apart.train.path.parent != plain.train.path.parent
    names = sorted(path.name for path in text_folder.iterdir() if not in_validation_part(path.name, 0.05))
    assert train_bytes(apart) == b"".join((text_folder / name).read_bytes() + b"\0" for name in names)


def test_an_end_that_the_tokens_type_cannot_hold_is_refused(text_folder: Path, tmp_path: Path) -> None:
    message = (
        r"^data\.document_end is 256, but ids of data\.tokenizer bytes go up to 255: give one that its tokens do not "
    )
    with pytest.raises(ConfigurationError, match=message + "use$"):
        prepare(text_folder, tmp_path, vocabulary=300, document_end=256)


def test_a_token_file_stays_as_it_is_and_has_its_ends_already(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(1000, dtype=np.uint16))
    assert prepare(path, tmp_path, document_end=70_000, vocabulary=80_000).train.path == path


def test_overlap_of_validation_and_training_is_measured(text_folder: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen.txt"
    seen.write_bytes((text_folder / "chapter-3.txt").read_bytes())
    found = prepare(text_folder, tmp_path, validation=str(seen)).overlap
    assert found and (found.ngram, found.share) == (13 * BYTES_PER_TOKEN, 1.0)
    assert prepare(text_folder, tmp_path, validation=str(seen), overlap_ngram=0).overlap is None
    with pytest.raises(ConfigurationError, match=r"^data\.overlap_limit is 0\.8, but 100\.0% of "):
        prepare(text_folder, tmp_path, validation=str(seen), overlap_limit=DataConfig().overlap_limit)


def test_an_ngram_of_a_token_file_has_as_many_tokens_as_the_setting_says(tmp_path: Path) -> None:
    np.arange(200, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    found = prepare(tmp_path / "tokens.bin", tmp_path, vocabulary=1000, validation_share=0.2).overlap
    assert found and (found.ngram, found.share) == (13, 0.0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing", "data.source .*missing: no such file or folder: give `stdlib` or a path"),
        ("empty", "data.source .*empty: no text in .*: give a path to a text file or folder"),
        ("short", "data.source .*short: 10 tokens of training text are too few for data.sequence = 16: "),
        ("empty.bin", "data.source .*empty.bin: 0 tokens of training text are too few for data.sequence = 16: "),
    ],
)
def test_unusable_source_is_refused(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short").write_bytes(b"0123456789")
    (tmp_path / "empty.bin").touch()
    with pytest.raises(ConfigurationError, match=message):
        prepare(tmp_path / source, tmp_path)


def test_short_validation_source_is_named(text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"0123456789")
    message = r"^data\.validation .*short: 10 tokens of validation text are too few"
    with pytest.raises(ConfigurationError, match=message):
        prepare(text_folder, tmp_path, validation=str(tmp_path / "short"))


def test_token_id_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    with pytest.raises(ConfigurationError) as refusal:
        prepare(tmp_path / "tokens.bin", tmp_path, vocabulary=999)
    assert str(refusal.value) == (
        "model.vocabulary is 999, but the data hold token id 999: raise model.vocabulary to 1000, "
        "or correct data.source or data.token_dtype"
    )


def test_cache_that_cannot_be_written_is_refused(text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(ConfigurationError, match=r"^data\.cache_directory .*cache: File exists: give a folder"):
        prepare(text_folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text/chapter-1.txt", r"^data\.source .*text: .*chapter-1\.txt: Permission denied: make it readable"),
        ("held-out.txt", r"^data\.validation .*held-out\.txt: .*held-out\.txt: Permission denied: make it readable"),
        ("cache/x.building", r"^data\.cache_directory .*cache: Permission denied: give a folder"),
        (None, r"^data\.source .*text or data\.cache_directory .*cache: Permission denied: check both disks"),
    ],
)
def test_an_error_while_the_corpus_is_built_names_the_file_that_failed(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, message: str
) -> None:
    error = PermissionError(13, "Permission denied", *([str(tmp_path / name)] if name else []))
    monkeypatch.setattr(Recipe, "spans", Mock(side_effect=error))
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("a text to validate on")
    settings: Any = {"validation": str(held_out)} if name == held_out.name else {}
    with pytest.raises(ConfigurationError, match=message):
        prepare(text_folder, tmp_path, **settings)
