import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer.data import tokenizer
from holdfast_trainer.data.tokenizer import open_tokenizer
from tests.support.programs import package

TEXT = "".join(f"Line {number}: zwölf Boxkämpfer jagen Viktor.\n" for number in range(300))


@pytest.fixture
def bpe_file(tmp_path: Path) -> Path:
    """A small byte-level BPE. Its file requests truncation and padding, as files of published models do."""
    library = package("tokenizers")
    bpe = library.Tokenizer(library.models.BPE())
    bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    settings = {"initial_alphabet": alphabet, "special_tokens": ["<|endoftext|>"], "show_progress": False}
    trainer = library.trainers.BpeTrainer(vocab_size=400, **settings)
    bpe.train_from_iterator([TEXT], trainer)
    bpe.enable_truncation(4)
    bpe.enable_padding(length=8)
    path = tmp_path / "tokenizer.json"
    bpe.save(str(path))
    return path


def test_bytes_are_their_own_tokens(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * 5000)
    tokens = np.concatenate(list(open_tokenizer("bytes").encode(path)))
    assert tokens.dtype == np.uint8
    assert tokens.tobytes() == path.read_bytes()


def test_tokens_of_a_file_are_those_of_its_text_also_in_pieces(
    bpe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = package("tokenizers").Tokenizer.from_file(str(bpe_file))
    library.no_truncation()
    library.no_padding()
    path = tmp_path / "text.txt"
    path.write_text(TEXT + "<|endoftext|>no newline at the end", encoding="utf-8")
    monkeypatch.setattr(tokenizer, "_PIECE_CHARACTERS", 500)
    bpe = open_tokenizer(str(bpe_file))
    parts = list(bpe.encode(path))
    assert len(parts) > 10
    assert np.concatenate(parts).tolist() == library.encode(path.read_text(encoding="utf-8")).ids
    assert parts[0].dtype == np.uint16
    assert bpe.vocabulary == library.get_vocab_size()


def test_text_without_lines_is_encoded_as_a_whole(
    bpe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT.replace("\n", " "), encoding="utf-8")
    monkeypatch.setattr(tokenizer, "_PIECE_CHARACTERS", 500)
    library = package("tokenizers").Tokenizer.from_file(str(bpe_file))
    tokens = np.concatenate(list(open_tokenizer(str(bpe_file)).encode(path)))
    assert library.decode(tokens.tolist()) == path.read_text(encoding="utf-8")


def test_missing_package_is_reported_with_its_fix(bpe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigurationError, match=r"install the extra tokenizers of holdfast-torch$"):
        open_tokenizer(str(bpe_file))


@pytest.mark.parametrize(("name", "problem"), [("missing.json", "No such file"), ("text.json", "expected ident")])
def test_unusable_tokenizer_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    package("tokenizers")
    (tmp_path / "text.json").write_text("no JSON")
    with pytest.raises(ConfigurationError, match=rf"^data\.tokenizer .*{name}: {problem}.*: give `bytes` or the path"):
        open_tokenizer(str(tmp_path / name))
