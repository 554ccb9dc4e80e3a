"""Checkpoints that an earlier version wrote: step 999 in full, and step 1049 as differences to it."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.conftest import checkpoint

CHECKPOINTS = Path(__file__).parents[2] / "data" / "before" / "checkpoints"
WEIGHTS = {
    999: "438b06adee3c7ff1a0208b9b5fe344a888a53f5e9bbf77c6044855d9d3b3b30d",
    1049: "e1553abfb160de8d9bffe01799779d5f035a216fc0f11cbb7fca840de4de29f2",
}
"""Step -> SHA-256 of the model as the version that wrote the checkpoints exported it."""


def holdfast(*arguments: str, place: Path = CHECKPOINTS) -> Result:
    return checkpoint(*arguments, "--checkpoints", place)


def test_every_byte_is_as_it_was_written(tmp_path: Path) -> None:
    copy = shutil.copytree(CHECKPOINTS, tmp_path / "checkpoints")  # the result stays next to a checkpoint
    result = holdfast("verify", "--all", "--json", place=copy)
    assert result.exit_code == 0, result.output
    assert all(not found["damages"] for found in json.loads(result.stdout))


def test_the_list_knows_the_base_and_the_layout() -> None:
    steps = json.loads(holdfast("list", "--json").stdout)
    assert [(step["step"], step["bases"], step["layout"]) for step in steps] == [
        (999, [], {"pp": 1, "dp": 2, "tp": 1}),
        (1049, [999], {"pp": 1, "dp": 2, "tp": 1}),
    ]


@pytest.mark.parametrize("step", WEIGHTS)
def test_the_weights_come_out_as_they_were(tmp_path: Path, step: int) -> None:
    file = tmp_path / "weights.safetensors"
    result = holdfast("export", str(step), "--to", str(file))
    assert result.exit_code == 0, result.output
    assert hashlib.sha256(file.read_bytes()).hexdigest() == WEIGHTS[step]
