"""What a component writes once it serves is what the command reads."""

import os
from pathlib import Path

import pytest

from holdfast_proto.endpoint import Endpoint, read_endpoint, write_endpoint


def test_what_a_component_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "agent-n0.json"
    assert read_endpoint(path) is None
    write_endpoint(path, metrics_port=9477)
    assert read_endpoint(path) == Endpoint(pid=os.getpid(), metrics_port=9477)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"pid": 1}', '{"pid": "one", "metrics_port": 1}', '{"pid": 1e999, "metrics_port": 1}']
)
def test_a_file_that_is_none_is_no_endpoint(tmp_path: Path, text: str) -> None:
    path = tmp_path / "daemon.sock.json"
    path.write_text(text)
    assert read_endpoint(path) is None
