"""The tokens to train and to validate on, prepared once and kept in a cache folder.

The folder of a corpus holds ``corpus.json`` and the tokens that were made from text. Token files are mapped from their
own place. One rename creates the folder, so that a process that finds it finds it complete.
"""

import dataclasses
import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config_sections import DataConfig
from holdfast_trainer.data.overlap import Overlap, cached_overlap
from holdfast_trainer.data.recipe import Recipe
from holdfast_trainer.data.token_file import TokenSpan, survey

_FACTS = "corpus.json"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The prepared tokens of a run, as spans of files, and facts about them."""

    train: TokenSpan
    validation: TokenSpan
    largest_id: int
    digest: str
    """BLAKE2b of the training tokens followed by the validation tokens, hexadecimal."""
    overlap: Overlap | None = None
    """Share of the validation text that occurs in the training text; None if ``data.overlap_ngram`` is 0."""


def prepare(config: DataConfig, *, vocabulary: int) -> Corpus:
    """Return the corpus of ``data.source``. Build it if the cache does not have it.

    Any number of processes can call this at the same time: one builds, the others wait. The key in the cache is made of
    the names, sizes and modification times of the source files, the tokenizer and the split. ``vocabulary`` is the
    number of token ids that the model knows. Raises ConfigurationError if the data cannot be used.
    """
    recipe = Recipe.find(config, vocabulary=vocabulary)
    cache = config.cache_directory.expanduser()
    directory = cache / recipe.name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{directory.name}.lock"):
            if not directory.exists():
                _build(recipe, directory)
            corpus = _read(directory)
            _check(config, corpus, vocabulary)
            if config.overlap_ngram:
                ngram = config.overlap_ngram * (1 if recipe.tokenizer is None else recipe.tokenizer.ngram_factor)
                overlap = cached_overlap(corpus.train, corpus.validation, ngram=ngram, folder=directory)
                corpus = dataclasses.replace(corpus, overlap=overlap)
    except OSError as error:
        raise ConfigurationError(_explain(error, recipe, cache)) from None
    if corpus.overlap:
        corpus.overlap.check(config.overlap_limit)
    return corpus


def _explain(error: OSError, recipe: Recipe, cache: Path) -> str:
    """Return which setting an error belongs to: reading the data and writing the cache fail in the same ways."""
    if error.filename is None:  # a disk that is full, or damaged
        return f"{recipe.train.setting} or data.cache_directory {cache}: {error.strerror}: check both disks"
    path = Path(error.filename)
    if cache in (path, *path.parents) or path in cache.parents:
        return f"data.cache_directory {cache}: {error.strerror}: give a folder that can be written"
    named = recipe.train
    if recipe.validation is not None and any(document.path == path for document in recipe.validation.documents):
        named = recipe.validation
    return f"{named.setting}: {path}: {error.strerror}: make it readable"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, directory: Path) -> None:
    """Write the folder of the corpus. The caller holds its lock."""
    building = directory.with_name(f"{directory.name}.building")
    shutil.rmtree(building, ignore_errors=True)  # A builder that was killed may have left it.
    building.mkdir()
    train, validation = recipe.spans(building)
    largest_id, digest = survey((train, validation))
    facts = {
        "train": _span_facts(train, building),
        "validation": _span_facts(validation, building),
        "largest_id": largest_id,
        "digest": digest,
    }
    (building / _FACTS).write_text(json.dumps(facts, indent=2), encoding="utf-8")
    building.rename(directory)


def _span_facts(span: TokenSpan, folder: Path) -> dict[str, Any]:
    path = span.path.name if span.path.parent == folder else str(span.path)
    return {**dataclasses.asdict(span), "path": path}


def _read(directory: Path) -> Corpus:
    try:
        facts = json.loads((directory / _FACTS).read_text(encoding="utf-8"))
        for part in ("train", "validation"):
            facts[part] = TokenSpan(**{**facts[part], "path": directory / facts[part]["path"]})
            facts[part].map()
        corpus = Corpus(**facts)
        if type(corpus.largest_id) is not int or not isinstance(corpus.digest, str):
            raise TypeError("a value of another type")
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ConfigurationError(f"data.cache_directory: {directory} is damaged: remove it to build it again") from None
    return corpus


def _check(config: DataConfig, corpus: Corpus, vocabulary: int) -> None:
    validation = f"data.validation {config.validation}" if config.validation else f"data.source {config.source}"
    for setting, part, span in (
        (f"data.source {config.source}", "training", corpus.train),
        (validation, "validation", corpus.validation),
    ):
        if span.count <= config.sequence:
            raise ConfigurationError(
                f"{setting}: {span.count} tokens of {part} text are too few for "
                f"data.sequence = {config.sequence}: give more text or lower data.sequence"
            )
    if corpus.largest_id >= vocabulary:
        raise ConfigurationError(
            f"model.vocabulary is {vocabulary}, but the data hold token id {corpus.largest_id}: "
            f"raise model.vocabulary to {corpus.largest_id + 1}, or correct data.source or data.token_dtype"
        )
