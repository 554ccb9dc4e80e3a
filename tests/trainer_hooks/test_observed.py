"""The hooks in a rank of another launcher."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import holdfast_hooks
from holdfast_hooks.identity import Identity
from holdfast_proto import black_box
from holdfast_proto.rank_context import ObservedNode

RANK = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}


class Unsuitable:
    """A state that cannot be saved, and need not be."""


def environment_of(folder: Path) -> dict[str, str]:
    node = ObservedNode(run="test", agent=f"unix:{folder}/agent.sock", black_boxes=str(folder / "boxes"))
    return {**node.to_environment(), **RANK}


def box_of(folder: Path) -> black_box.BlackBoxContents:
    return black_box.read(folder / "boxes" / "generation-0002" / "rank-00003.box")


@pytest.fixture
def observed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of(folder).items():
        monkeypatch.setenv(name, value)


def test_it_sends_its_identity_saves_nothing_and_reports_that_it_leaves(
    observed: None, agent: Any, folder: Path
) -> None:
    with holdfast_hooks.attach(state={"model": Unsuitable()}) as hooks:  # type: ignore[dict-item]
        for _ in hooks.steps(until=3):
            pass
        assert not box_of(folder).finished
    hello = agent.of("hello")[0]
    assert (hello.run, hello.generation, hello.rank, hello.pid) == ("test", 2, 3, os.getpid())
    assert (hello.world_size, hello.local_rank, hello.local_world_size) == (8, 1, 2)
    agent.wait_until(lambda: len(agent.steps) == 3 and agent.of("report")[-1].finished)
    assert [report.finished for report in agent.of("report")[:-1]].count(True) == 0
    assert agent.of("slot_request") == []
    contents = box_of(folder)
    assert (contents.finished, contents.generation, contents.rank) == (True, 2, 3)


@pytest.mark.parametrize(
    ("end", "code", "finished"),
    [
        ("pass", 0, True),
        ("sys.exit()", 0, True),
        ("sys.exit(3)", 3, False),
        ("raise ValueError('bad sample')", 1, False),
        ("os._exit(0)", 0, False),
    ],
)
def test_only_a_rank_that_ends_well_is_finished(agent: Any, folder: Path, end: str, code: int, finished: bool) -> None:
    script = f"""
        import os, sys, holdfast_hooks
        with holdfast_hooks.attach() as hooks:
            for step in hooks.steps(until=1):
                {end}
    """
    rank = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **environment_of(folder)},
        check=False,
        stderr=subprocess.DEVNULL,
    )
    assert (rank.returncode, box_of(folder).finished) == (code, finished)


@pytest.mark.parametrize(
    ("environment", "identity"),
    [
        ({}, Identity(0, 1, 0)),
        (RANK, Identity(3, 8, 1, 2)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            Identity(5, 8, 1, 4),
        ),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "2"}, Identity(2, 4, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Identity(0, 1, 0)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", **RANK}, Identity(3, 8, 1, 2)),
    ],
    ids=["alone", "torchrun", "mpirun", "srun", "batch script", "torchrun under srun"],
)
def test_a_rank_knows_its_place_from_what_its_launcher_sets(environment: dict[str, str], identity: Identity) -> None:
    assert Identity.from_environment(environment) == identity
