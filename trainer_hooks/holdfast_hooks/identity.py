"""This process's rank, from the variables that its launcher sets, or from torch's process group."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class _Launcher:
    """Names of the variables in which a launcher passes a process its place. The first that is set counts."""

    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...]


_LAUNCHERS = (
    _Launcher(("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    _Launcher(
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    # Hydra, the launcher of MPICH and of Intel MPI, sets PMI_ and MPI_LOCAL variables: MPICH 5.0 and Intel MPI 2021.18
    # show it. HPE's PALS has names of its own for the place on a node, and Cray's PMI has others.
    # These come before Slurm: Hydra may start helpers with srun, one on each node, and ranks inherit their numbers.
    _Launcher(
        ("PMI_RANK", "PALS_RANKID"),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    ),
    # The variables of a job step. A batch script has SLURM_PROCID and SLURM_NTASKS too, but it is not a rank.
    # https://slurm.schedmd.com/srun.html
    _Launcher(("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS",), ("SLURM_LOCALID",), ("SLURM_NTASKS_PER_NODE",)),
)


@dataclass(frozen=True)
class Identity:
    """This process's place in the world."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int = 0
    """Number of ranks on this node; 0 if the launcher does not say."""
    store_port: int = 0
    """Port of the rendezvous store; 0 if the launcher does not say, or says something else than a port."""
    restarts_left: int | None = None
    """Number of times that the launcher may still start the ranks again; None if it does not say."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Identity":
        """Read the variables of torchelastic, else of Open MPI, else of MPICH and its like, else of srun.

        Without any, or with some that make no sense, this is a world of one.
        """
        store_port = _number(environment, ("MASTER_PORT",), below=1 << 16) or 0
        restarts_left = _restarts_left(environment)
        for names in _LAUNCHERS:
            world_size = _number(environment, names.world_size)
            rank = _number(environment, names.rank, below=world_size)
            if rank is not None and world_size is not None:
                # Slurm's plugin for PMI sets no place on the node, but Slurm does, for the same rank.
                alike = [names, *(one for one in _LAUNCHERS if _number(environment, one.rank) == rank)]
                local_rank = _first_number(environment, [one.local_rank for one in alike])
                local_world_size = _first_number(environment, [one.local_world_size for one in alike])
                return cls(rank, world_size, local_rank, local_world_size, store_port, restarts_left)
        local_rank = _number(environment, ("LOCAL_RANK",)) or 0
        return cls(0, 1, local_rank, store_port=store_port, restarts_left=restarts_left)

    def as_in_torch(self) -> "Identity":
        """Return this place with the rank and the world size of torch's process group, if there is one.

        A group that is smaller than the launcher's world does not count: each process may train a model of its own. If
        the numbers are not those of the launcher, its other ones are not for this world either. Then all ranks are
        taken to be on this node.
        """
        world = world_of_torch()
        if world is None or world == (self.rank, self.world_size) or world[1] < self.world_size:
            return self
        rank, world_size = world
        return replace(self, rank=rank, world_size=world_size, local_rank=rank, local_world_size=0)


def world_of_torch() -> tuple[int, int] | None:
    """Return rank and world size of torch's default process group; None without one. This never imports torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _restarts_left(environment: Mapping[str, str]) -> int | None:
    most = _number(environment, ("TORCHELASTIC_MAX_RESTARTS",))
    done = _number(environment, ("TORCHELASTIC_RESTART_COUNT",))
    return None if most is None or done is None or done > most else most - done


def _number(environment: Mapping[str, str], names: tuple[str, ...], *, below: int | None = None) -> int | None:
    """Return the number in the first of some variables that is set; None if none is, or if it is none ``below``."""
    text = next((environment[name] for name in names if name in environment), "")
    number = int(text) if text.isdecimal() and len(text) < _DIGITS else None
    return None if number is None or (below is not None and number >= below) else number


def _first_number(environment: Mapping[str, str], sets: list[tuple[str, ...]]) -> int:
    """Return the number of the first set of variables that has one, else 0."""
    found = (_number(environment, names) for names in sets)
    return next((number for number in found if number is not None), 0)


_DIGITS = 10
"""Digits that no rank, world or port needs."""
