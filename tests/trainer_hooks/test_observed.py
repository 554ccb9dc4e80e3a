"""The hooks in a rank of another launcher."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import holdfast_hooks
from holdfast_hooks.identity import Identity
from holdfast_proto import black_box
from holdfast_proto.rank_context import ObservedNode
from tests.trainer_hooks.conftest import run_python

HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
RANK = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"}


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
    assert not hello.HasField("restarts_left")
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
    rank = run_python(script, **environment_of(folder))
    assert (rank.returncode, box_of(folder).finished) == (code, finished)


OPEN_MPI = {
    f"OMPI_COMM_WORLD_{name}": value
    for name, value in {"RANK": "5", "SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}.items()
}
PALS = {"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4", "PMI_RANK": "5", "PMI_SIZE": "8"}
CRAY = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4", "PALS_LOCAL_RANKID": "1"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
PLACES = {
    "alone": ({}, Identity(0, 1, 0)),
    "torchrun": (RANK, Identity(3, 8, 1, 2)),
    "mpirun": (OPEN_MPI, Identity(5, 8, 1, 4)),
    "srun": ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "2"}, Identity(2, 4, 2)),
    "batch script": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Identity(0, 1, 0)),
    "MPICH": (HYDRA, Identity(5, 8, 1, 4)),
    "MPICH over srun": ({**SRUN, "SLURM_LOCALID": "0", **HYDRA}, Identity(5, 8, 1, 4)),
    "PALS": (PALS, Identity(5, 8, 1, 4)),
    "Cray": (CRAY, Identity(5, 8, 1, 4)),
    "PMI of srun": ({"PMI_RANK": "3", "PMI_SIZE": "4", **SLURM}, Identity(3, 4, 1, 2)),
    "another rank of srun": ({"PMI_RANK": "2", "PMI_SIZE": "4", **SLURM}, Identity(2, 4, 0, 0)),
    "torchrun under MPICH": ({"PMI_RANK": "0", "PMI_SIZE": "1", **RANK}, Identity(3, 8, 1, 2)),
    "no number": ({"RANK": "first", "WORLD_SIZE": "8", **HYDRA}, Identity(5, 8, 1, 4)),
    "outside of its world": ({"RANK": "8", "WORLD_SIZE": "8"}, Identity(0, 1, 0)),
    "half a set": ({"RANK": "3"}, Identity(0, 1, 0)),
    "torchrun under srun": ({**SRUN, **RANK}, Identity(3, 8, 1, 2)),
    "torchrun with restarts": ({**RANK, "TORCHELASTIC_MAX_RESTARTS": "3"}, Identity(3, 8, 1, 2, restarts_left=2)),
    "no number of restarts": ({**RANK, "TORCHELASTIC_MAX_RESTARTS": "many"}, Identity(3, 8, 1, 2)),
    "more restarts than there are": ({**RANK, "TORCHELASTIC_MAX_RESTARTS": "0"}, Identity(3, 8, 1, 2)),
}


@pytest.mark.parametrize(("environment", "identity"), PLACES.values(), ids=PLACES)
def test_a_rank_knows_its_place_from_what_its_launcher_sets(environment: dict[str, str], identity: Identity) -> None:
    assert Identity.from_environment(environment) == identity


@pytest.fixture
def torch_world() -> Iterator[None]:
    """Torch's process group, in which this process is rank 2 of 4. It sends nothing."""
    dist.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("launcher", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_an_observed_rank_is_what_torch_says(
    agent: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, torch_world: None, launcher: dict[str, str]
) -> None:
    for name, value in {**environment_of(folder), **dict.fromkeys(RANK, ""), **launcher}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with holdfast_hooks.attach():
        (hello,) = agent.wait_until(lambda: agent.of("hello"))
    assert (hello.rank, hello.world_size, hello.local_rank, hello.local_world_size) == (2, 4, 2, 0)
    assert black_box.read(folder / "boxes" / "generation-0002" / "rank-00002.box").finished


def test_a_group_that_is_smaller_than_the_launchers_world_does_not_count(torch_world: None) -> None:
    alone = Identity.from_environment(RANK)
    assert alone.world_size == 8
    assert alone.as_in_torch() == alone
    assert Identity(rank=0, world_size=4, local_rank=0).as_in_torch().rank == 2


def test_a_rank_that_attached_alone_and_is_not_alone_says_so_once(
    observed: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with holdfast_hooks.attach() as hooks:
        request.getfixturevalue("torch_world")
        for _ in hooks.steps(until=3):
            pass
    said = [record.getMessage() for record in caplog.records if "rank 2 of 4" in record.getMessage()]
    assert said == [
        "this process attached as rank 0 of 1, but it is rank 2 of 4 in torch: call attach() after"
        " init_process_group(), or set RANK and WORLD_SIZE"
    ]
