"""Runs that end in one layout and continue in another, from the checkpointed step and with the same losses."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.commands.demo import state_differences
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED
from tests.chaos.conftest import PATIENCE_S, Runs, faults

pytestmark = pytest.mark.system

STEPS = 12
CHECKPOINT_EVERY = 4
RTOL = 1e-4
NAME = "layouts"
LOSS = re.compile(r"^step (\d+)  loss ([\d.]+)", re.MULTILINE)


def layout(*, dp: int = 1, tp: int = 1, pp: int = 1, zero: int = 3) -> dict[str, Any]:
    degrees = {"dp": dp, "tp": tp, "pp": pp, "zero": zero}
    flags = [f"--parallel.{key}={value}" for key, value in degrees.items()]
    return {
        "ranks": dp * tp * pp,
        "steps": STEPS,
        "checkpoint_every": CHECKPOINT_EVERY,
        "flags": (*flags, "--train.log_every=1"),
    }


FIRST = layout(dp=2, tp=2)


@dataclass(frozen=True)
class Whole:
    """A whole run in the first layout."""

    losses: dict[int, float]
    final: Path
    """Folder of its last checkpoint."""
    first: Path
    """Folder of checkpoints with a single, earlier checkpoint, as if the run had ended there."""


@pytest.fixture(scope="module")
def uninterrupted(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    with runs.run(NAME, hurry=True, checkpoints_kept=STEPS, **FIRST) as local:
        status = local.wait(timeout_s=PATIENCE_S)
        assert status.phase == RUN_PHASE_FINISHED, status.outcome
    first, *_, final = sorted(Path(local.checkpoints).glob("step-*"))
    folder = tmp_path_factory.mktemp("first")
    shutil.copytree(first, folder / first.name)
    return Whole(losses(local), final, folder)


def losses(run: LocalRun) -> dict[int, float]:
    """Return step -> loss, as the ranks of the newest generation printed them."""
    newest = max((run.paths.directory / "logs").glob("generation-*"))
    printed = "".join(path.read_text() for path in sorted(newest.glob("rank-*.log")))
    return {int(step): float(loss) for step, loss in LOSS.findall(printed)}


def resumed(runs: Runs, checkpoints: Path, changes: dict[str, Any]) -> LocalRun:
    """Let the interrupted run continue from ``checkpoints`` to its end."""
    newest = int(max(checkpoints.glob("step-*")).name.removeprefix("step-"))
    with runs.run(NAME, hurry=True, checkpoint_directory=checkpoints, **changes) as local:
        status = local.wait(timeout_s=PATIENCE_S)
        assert status.phase == RUN_PHASE_FINISHED, status.outcome
        assert status.restarts == 0
        assert not faults(local)
    assert CHECKPOINT_EVERY - 1 <= newest < STEPS - 1
    assert list(losses(local)) == list(range(newest + 1, STEPS))
    return local


@pytest.mark.safety
@pytest.mark.slice
def test_in_the_same_layout_the_run_ends_bit_identical(runs: Runs, uninterrupted: Whole, tmp_path: Path) -> None:
    checkpoints = Path(shutil.copytree(uninterrupted.first, tmp_path / "checkpoints"))
    resumed(runs, checkpoints, FIRST)
    assert state_differences(uninterrupted.final, checkpoints / uninterrupted.final.name) == []


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(layout(pp=2, dp=2, zero=1), id="pp 2 x dp 2, ZeRO 1"),
        pytest.param(layout(tp=2), id="tp 2, half the ranks"),
    ],
)
def test_in_another_layout_the_losses_are_those_of_the_uninterrupted_run(
    runs: Runs, uninterrupted: Whole, tmp_path: Path, other: dict[str, Any]
) -> None:
    checkpoints = Path(shutil.copytree(uninterrupted.first, tmp_path / "checkpoints"))
    seen = losses(resumed(runs, checkpoints, other))
    assert seen == pytest.approx({step: uninterrupted.losses[step] for step in seen}, rel=RTOL)
