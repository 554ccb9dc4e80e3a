import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer.data import sources

NOBODY = 65534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Act as an ordinary user, because root may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_documents_come_in_the_order_of_their_names_without_hidden_folders(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a.txt", "b/1.txt", ".git/config", "__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = sources.find("data.source", str(tmp_path))
    assert [document.name for document in found.documents] == ["a.txt", "b/1.txt", "b/2.txt"]
    assert not found.has_tokens


def test_some_document_is_always_kept_for_validation(text_folder: Path) -> None:
    documents = sources.find("data.source", str(text_folder)).documents
    training, validation = sources.split(documents, 1e-9)
    assert (len(training), len(validation)) == (59, 1)


@pytest.mark.parametrize("closed", ["closed.txt", "closed"])
def test_what_may_not_be_read_is_refused_and_not_skipped(open_folder: Path, closed: str) -> None:
    (open_folder / "open.txt").write_text("open")
    path = open_folder / closed
    path.touch() if path.suffix else path.mkdir()
    path.chmod(0)
    message = rf"^data\.source {open_folder}: {path}: Permission denied: make it readable$"
    with ordinary_user(), pytest.raises(ConfigurationError, match=message):
        sources.find("data.source", str(open_folder))
