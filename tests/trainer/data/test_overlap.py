from pathlib import Path

import numpy as np
import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer.data import overlap, token_file
from holdfast_trainer.data.overlap import Overlap, cached_overlap, measure_overlap
from holdfast_trainer.data.token_file import TokenSpan


def span(folder: Path, name: str, tokens: np.ndarray) -> TokenSpan:
    path = folder / name
    tokens.astype(np.uint16).tofile(path)
    return TokenSpan(path=path, dtype="uint16", count=len(tokens))


def plainly(training: np.ndarray, evaluation: np.ndarray, ngram: int) -> float:
    def ngrams(tokens: np.ndarray) -> list[tuple[int, ...]]:
        return [tuple(tokens[i : i + ngram].tolist()) for i in range(len(tokens) - ngram + 1)]

    seen = set(ngrams(training))
    return sum(one in seen for one in ngrams(evaluation)) / len(ngrams(evaluation))


@pytest.mark.parametrize("ngram", [1, 2, 5, 13])
@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_share_is_that_of_a_plain_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ngram: int, chunk: int
) -> None:
    monkeypatch.setattr(token_file, "_CHUNK_TOKENS", chunk)
    random = np.random.default_rng(0)
    training = random.integers(0, 4, size=2000)
    evaluation = np.concatenate([random.integers(0, 6, size=100), training[300:340], random.integers(0, 4, size=100)])
    found = measure_overlap(span(tmp_path, "t", training), span(tmp_path, "e", evaluation), ngram=ngram)
    assert found.compared == len(evaluation) - ngram + 1
    assert found.share == pytest.approx(plainly(training, evaluation, ngram), abs=1e-12)
    assert 0 < found.share < 1


def test_tokens_of_different_widths_are_compared(tmp_path: Path) -> None:
    tokens = np.arange(100)
    narrow = tmp_path / "narrow"
    tokens.astype(np.uint8).tofile(narrow)
    wide = span(tmp_path, "wide", tokens)
    assert measure_overlap(TokenSpan(path=narrow, dtype="uint8", count=100), wide, ngram=13).share == 1.0


def test_text_shorter_than_an_ngram_has_no_overlap(tmp_path: Path) -> None:
    tokens = span(tmp_path, "short", np.arange(12))
    assert measure_overlap(tokens, tokens, ngram=13) == Overlap(ngram=13, share=0.0, compared=0)


def test_long_text_is_judged_from_a_bounded_sample_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_MOST_KEPT", 1000)
    random = np.random.default_rng(0)
    training = random.integers(0, 50_000, size=40_000)
    evaluation = np.concatenate([training[:6_000], random.integers(0, 50_000, size=14_000)])
    found = measure_overlap(span(tmp_path, "t", training), span(tmp_path, "e", evaluation), ngram=13)
    assert 800 < found.compared < 1200
    assert 0.25 < found.share < 0.35


def test_result_is_remembered(tmp_path: Path) -> None:
    text = span(tmp_path, "text", np.arange(100))
    first = cached_overlap(text, text, ngram=13, folder=tmp_path)
    text.path.unlink()
    assert cached_overlap(text, text, ngram=13, folder=tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["overlap-13.json"]


def test_more_than_the_limit_is_refused() -> None:
    found = Overlap(ngram=13, share=0.25, compared=4000)
    found.check(0.25)
    with pytest.raises(ConfigurationError) as refusal:
        found.check(0.2)
    assert str(refusal.value) == (
        "data.overlap_limit is 0.2, but 25.0% of 4,000 validation 13-grams occur in the training text: "
        "give other data.validation or raise data.overlap_limit"
    )
