"""This process's rank, from the variables that its launcher sets."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class _Launcher:
    """Names of the variables in which a launcher passes a process its place in the world."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_TORCHELASTIC = _Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_LAUNCHERS = (
    _TORCHELASTIC,
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    _Launcher(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # The variables of a job step. A batch script has SLURM_PROCID and SLURM_NTASKS too, but it is not a rank.
    # https://slurm.schedmd.com/srun.html
    _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
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

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Identity":
        """Read the variables of torchelastic, else of mpirun, else of srun. Without any, this is a world of one."""
        set_by = (names for names in _LAUNCHERS if names.rank in environment and names.world_size in environment)
        names = next(set_by, _TORCHELASTIC)
        return cls(
            rank=int(environment.get(names.rank, "0")),
            world_size=int(environment.get(names.world_size, "1")),
            local_rank=int(environment.get(names.local_rank, "0")),
            local_world_size=int(environment.get(names.local_world_size, "0")),
            store_port=_port(environment.get("MASTER_PORT", "")),
        )


def _port(text: str) -> int:
    return int(text) if text.isdecimal() and int(text) < 1 << 16 else 0
