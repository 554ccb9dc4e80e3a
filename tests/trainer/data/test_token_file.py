from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast_hooks import ConfigurationError
from holdfast_trainer.data.token_file import TokenSpan, open_token_file, survey

TOKENS = np.array([5, 0, 65535, 7, 8, 9, 10], dtype=np.uint16)


def opened(path: Path, dtype: str = "uint16") -> TokenSpan:
    return open_token_file(path, setting=f"data.source {path.name}", dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("suffix", ["bin", "npy"])
def test_ids_are_mapped_from_where_they_are(tmp_path: Path, dtype: type, suffix: str) -> None:
    path = tmp_path / f"tokens.{suffix}"
    tokens: NDArray[Any] = TOKENS.astype(dtype)
    np.save(path, tokens) if suffix == "npy" else tokens.tofile(path)
    mapped = opened(path, np.dtype(dtype).name).map()
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert (mapped.dtype, mapped.tolist()) == (dtype, TOKENS.tolist())


def test_type_of_a_numpy_file_is_its_own(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", TOKENS.astype(np.uint32))
    assert opened(tmp_path / "tokens.npy", "uint16").map().tolist() == TOKENS.tolist()


def test_span_is_cut_into_what_comes_first_and_its_last_share(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", TOKENS)
    first, last = opened(tmp_path / "tokens.npy").cut(0.3)
    assert first.map().tolist() == TOKENS.tolist()[:5]
    assert last.map().tolist() == TOKENS.tolist()[5:]


def test_chunks_repeat_the_end_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_trainer.data.token_file._CHUNK_TOKENS", 3)
    TOKENS.tofile(tmp_path / "tokens.bin")
    chunks = [chunk.tolist() for chunk in opened(tmp_path / "tokens.bin").chunks(overlap=2)]
    assert chunks == [[5, 0, 65535], [0, 65535, 7, 8, 9], [8, 9, 10]]


def test_survey_returns_the_largest_id_and_a_digest_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TOKENS.tofile(tmp_path / "tokens.bin")
    whole = opened(tmp_path / "tokens.bin")
    largest, digest = survey([whole])
    assert largest == 65535
    monkeypatch.setattr("holdfast_trainer.data.token_file._CHUNK_TOKENS", 3)
    assert survey(whole.cut(0.5)) == (largest, digest)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("odd.bin", b"123", "3 bytes are no whole number of uint16: set data.token_dtype or give an undamaged file"),
        ("signed.npy", np.zeros(4, dtype=np.int64), r"holds <i8 of shape \(4,\): save the ids as one dimension of "),
        ("swapped.npy", TOKENS.astype(">u2"), r"holds >u2 of shape \(7,\): save the ids as one dimension of native"),
        ("square.npy", np.zeros((2, 2), dtype=np.uint16), r"holds <u2 of shape \(2, 2\): save the ids as one "),
        ("text.npy", b"not NumPy's", "not a whole NumPy file: give an undamaged one"),
        ("empty.npy", b"", "not a whole NumPy file: give an undamaged one"),
    ],
)
def test_file_of_something_else_is_refused(
    tmp_path: Path, name: str, content: bytes | NDArray[Any], message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    with pytest.raises(ConfigurationError, match=f"^data.source {name}: {message}") as refusal:
        opened(path)
    assert "\n" not in str(refusal.value)


def test_cut_off_numpy_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.npy"
    np.save(path, TOKENS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigurationError, match=r"^data\.source cut\.npy: not a whole NumPy file: "):
        opened(path)
