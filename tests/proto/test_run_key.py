"""The key of a run, its file, and the numbers of values."""

import time
from pathlib import Path

import pytest

from holdfast_proto.run_key import ForgedError, Numbers, RunKey, RunKeyError, RunKeyFile, Seal

SEAL = Seal(b"key")


def test_a_sealed_value_opens_with_its_number_for_its_place_alone() -> None:
    sealed = SEAL.close("place", b"content", 2**63)
    opened = SEAL.open("place", sealed)
    assert (opened.number, opened.content) == (2**63, b"content")
    for seal, place, data in ((SEAL, "other", sealed), (Seal(b"x"), "place", sealed), (SEAL, "place", b"content" * 9)):
        with pytest.raises(ForgedError):
            seal.open(place, data)


def test_no_byte_of_a_sealed_value_can_be_changed_or_left_out() -> None:
    sealed = SEAL.close("place", b"content", 5)
    for index in range(len(sealed)):
        changed = bytearray(sealed)
        changed[index] ^= 1
        for data in (bytes(changed), sealed[:index]):
            with pytest.raises(ForgedError):
                SEAL.open("place", data)


def test_a_signed_text_is_read_for_its_place_alone() -> None:
    signed = SEAL.sign_text("place", "host 1 77").encode()
    assert SEAL.read_text("place", signed) == "host 1 77"
    for place, data in (("other", signed), ("place", b"host 2" + signed[6:]), ("place", b"77"), ("place", b"")):
        with pytest.raises(ForgedError):
            SEAL.read_text(place, data)


def test_runs_and_their_starts_have_keys_of_their_own() -> None:
    keys = {RunKey("s" * 32, run).seal_of(start)._key for run in ("a", "b") for start in ("", "i", "j")}
    keys |= {RunKey("s" * 32, run).seal._key for run in ("a", "b")}
    assert len(keys) == 8


def test_the_number_of_a_value_is_larger_than_all_before_it_also_if_the_clock_was_set_back() -> None:
    now = Numbers()
    assert time.time_ns() - now.start < 3.6e12
    assert now.next() < now.next()
    ahead = time.time_ns() + 10**15
    after = Numbers(earlier_start=ahead)
    assert after.start > ahead
    assert after.next() > after.start
    assert Numbers(7).start == 7, "by the clock that all nodes share"


def test_a_key_is_made_privately_and_read_again_when_it_was_replaced(tmp_path: Path) -> None:
    file = RunKeyFile(tmp_path / "runs" / "r.key", "r")
    file.make()
    assert file.path.stat().st_mode & 0o777 == 0o600
    first = file.read()
    assert file.read() is first
    file.make()
    assert file.read() is first, "what is there stays"
    file.replace()
    assert file.read().seal._key != first.seal._key
    assert [path.name for path in file.path.parent.iterdir()] == ["r.key"]


def test_a_key_that_was_read_still_counts_when_its_file_is_unfit_or_gone(tmp_path: Path) -> None:
    file = RunKeyFile(tmp_path / "r.key", "r")
    file.make()
    known = file.read()
    file.path.chmod(0o644)
    assert file.read() is known
    file.path.unlink()
    assert file.read() is known


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (None, 0, "there is no key of run r at .*: copy the file that `holdfast publish` has written"),
        ("k" * 64, 0o604, "others can use this key"),
        ("k" * 64, 0o620, "others can use this key"),
        ("k" * 31, 0o600, "use 32 characters or more"),
        ("", 0o600, "it holds no secret"),
        ("two\nlines" * 9, 0o600, "only line"),
    ],
)
def test_an_unfit_file_is_refused_in_one_line_that_names_it(
    tmp_path: Path, text: str | None, mode: int, message: str
) -> None:
    file = RunKeyFile(tmp_path / "r.key", "r")
    if text is not None:
        file.path.write_text(text)
        file.path.chmod(mode)
    with pytest.raises(RunKeyError, match=message) as caught:
        file.read()
    assert str(file.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_group_may_read_a_key(tmp_path: Path) -> None:
    file = RunKeyFile(tmp_path / "r.key", "r")
    file.make()
    file.path.chmod(0o640)
    assert file.read()
