"""The source files of a corpus, and how they become tokens."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config_sections import DataConfig
from holdfast_trainer.data import sources
from holdfast_trainer.data.sources import Document, NamedFiles
from holdfast_trainer.data.token_file import TokenSpan, open_token_file
from holdfast_trainer.data.tokenizer import Tokenizer, open_tokenizer


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Knows the files to train and to validate on, and turns them into spans of tokens."""

    config: DataConfig
    train: NamedFiles
    validation: NamedFiles | None
    """None: a share of ``train``."""
    tokenizer: Tokenizer | None
    """Tokenizer of the text; None if all files hold tokens already."""

    @classmethod
    def find(cls, config: DataConfig, *, vocabulary: int) -> "Recipe":
        """Find the files and the tokenizer that ``config`` names.

        Raises ConfigurationError if one is missing, or if the tokenizer has more tokens than ``vocabulary``.
        """
        train = sources.find("data.source", config.source)
        validation = sources.find("data.validation", config.validation) if config.validation else None
        has_text = not train.has_tokens or (validation is not None and not validation.has_tokens)
        tokenizer = open_tokenizer(config.tokenizer) if has_text else None
        if tokenizer and tokenizer.vocabulary > vocabulary:
            raise ConfigurationError(
                f"model.vocabulary is {vocabulary}, but data.tokenizer {config.tokenizer} has "
                f"{tokenizer.vocabulary} tokens: raise model.vocabulary to {tokenizer.vocabulary}"
            )
        end = config.document_end
        if tokenizer and end is not None and end > np.iinfo(tokenizer.dtype).max:
            raise ConfigurationError(
                f"data.document_end is {end}, but ids of data.tokenizer {config.tokenizer} go up to "
                f"{np.iinfo(tokenizer.dtype).max}: give one that its tokens do not use"
            )
        return cls(config=config, train=train, validation=validation, tokenizer=tokenizer)

    @property
    def name(self) -> str:
        """Name of the corpus in the cache. It differs if the files, the tokenizer or the split differ."""
        facts = [self.config.token_dtype, str(self.config.validation_share)]
        facts.append(self.tokenizer.key if self.tokenizer else "")
        facts += [document.stamp for document in self.train.documents]
        if self.validation:
            facts += ["validation", *(document.stamp for document in self.validation.documents)]
        if self.tokenizer and self.config.document_end is not None:
            facts.append(f"document end {self.config.document_end}")
        digest = hashlib.blake2b("\0".join(facts).encode(), digest_size=8).hexdigest()
        return f"{Path(self.config.source).stem or 'corpus'}-{digest}"

    def spans(self, folder: Path) -> tuple[TokenSpan, TokenSpan]:
        """Return the training and the validation tokens. Tokens that are made from text are written into ``folder``.

        If validation has no source of its own, it gets some of the files, or the end of the only file.
        """
        share = self.config.validation_share
        if self.validation:
            train = self._tokens_of(self.train, folder / "train.bin")
            return train, self._tokens_of(self.validation, folder / "validation.bin")
        if len(self.train.documents) == 1:
            return self._tokens_of(self.train, folder / "tokens.bin").cut(share)
        training, held_out = sources.split(self.train.documents, share)
        return self._encode(training, folder / "train.bin"), self._encode(held_out, folder / "validation.bin")

    def _tokens_of(self, source: NamedFiles, path: Path) -> TokenSpan:
        if source.has_tokens:
            return open_token_file(source.documents[0].path, setting=source.setting, dtype=self.config.token_dtype)
        return self._encode(source.documents, path)

    def _encode(self, documents: Iterable[Document], path: Path) -> TokenSpan:
        assert self.tokenizer is not None
        dtype, end = self.tokenizer.dtype, self.config.document_end
        with path.open("wb") as file:
            for document in documents:
                for tokens in self.tokenizer.encode(document.path):
                    file.write(tokens.data)
                if end is not None:
                    file.write(np.array([end], dtype=dtype).data)
        return TokenSpan(path=path, dtype=dtype.name, count=path.stat().st_size // dtype.itemsize)
