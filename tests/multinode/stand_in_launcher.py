"""Starts two processes of one node as mpirun or srun do: ``stand_in_launcher.py mpirun|srun NODE COMMAND...``.

It sets the variables that they document, prints how each process has ended, and exits with the largest exit code.
"""

import os
import subprocess
import sys

RANKS = 2
NODES = 2


def variables(kind: str, node: int, local_rank: int) -> dict[str, str]:
    rank, world = RANKS * (node - 1) + local_rank, RANKS * NODES
    if kind == "mpirun":
        return {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(world),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(RANKS),
            "PMIX_NAMESPACE": "prterun-1@1",
        }
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(world),
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NTASKS_PER_NODE": str(RANKS),
    }


def main(kind: str, node: int, command: list[str]) -> int:
    started = [
        subprocess.Popen(command, env={**os.environ, **variables(kind, node, local_rank)})
        for local_rank in range(RANKS)
    ]
    codes = [process.wait() for process in started]
    print(f"codes {codes}", flush=True)
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
