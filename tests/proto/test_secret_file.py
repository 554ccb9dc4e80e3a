import os
from pathlib import Path

import pytest

from holdfast_proto.secret_file import SecretError, exposure, read_secret


def test_a_secret_is_the_only_line(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" a-secret \n")
    assert read_secret(file) == "a-secret"


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", b"\xff", b"x" * 20_000])
def test_what_holds_no_secret_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(SecretError, match=r"it holds no secret|more than 16384 bytes: name a file that holds a secret"):
        read_secret(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="nothing: No such file"):
        read_secret(tmp_path / "nothing")


def test_a_secret_that_others_can_read_is_worth_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    assert exposure(file) == ""
    file.chmod(0o644)
    assert "chmod 600" in exposure(file)
    assert exposure(tmp_path / "nothing") == ""


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "secret"
    os.mkfifo(pipe)
    with pytest.raises(SecretError, match="it is no regular file"):
        read_secret(pipe)
