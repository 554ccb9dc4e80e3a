"""Measure the time that a killed rank costs: kill one of the ranks, again and again, while a run trains.

In the same call, start the same processes cold, from a committed checkpoint of the same run to the end of their
first optimizer step. The cold restart gets two things for free that Holdfast must do first. It need not detect that a
rank died, and its shards are already unpacked in shared memory.

With ``--torchrun``, measure instead what a killed rank, a hung rank and a lost node cost under torchrun, with
Holdfast's rendezvous and with torch's own.

    python benchmarks/recovery.py [--ranks 8] [--kills 5] [--torchrun] [--json]
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.torchrun_jobs import torchrun_faults
from holdfast_agent.checkpoints.restorer import slot_for
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.format.slot_shard import read_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_cli.control import ControlError, rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import PresetName
from holdfast_proto import black_box
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_RECOVERED, RUN_PHASE_RUNNING, Incident

LAYOUTS = {2: (2, 1, 1), 8: (2, 2, 2)}
"""Number of ranks -> data-parallel, tensor-parallel and pipeline ranks."""
STEPS = 100_000
"""More steps than are trained: the benchmark ends the run."""

CHECKPOINT_EVERY = 10
STEPS_BETWEEN_KILLS = 6
PATIENCE_S = 180.0


def trainer_command(ranks: int) -> tuple[str, ...]:
    config = str(files("holdfast_trainer") / "configs" / "demo.toml")
    layout = [word for name, size in zip(("dp", "tp", "pp"), LAYOUTS[ranks], strict=True)
              for word in (f"--parallel.{name}", str(size))]  # fmt: skip
    return ("python", "-m", "holdfast_trainer", "--config", config, "--train.steps", str(STEPS), *layout)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was not met within {PATIENCE_S:g} s")
        time.sleep(0.01)


def status_of(local: LocalRun) -> RunStatus | None:
    try:
        return local.status()
    except ControlError:
        return None


def kill_and_recover(local: LocalRun, number: int) -> tuple[float, Incident]:
    """Kill a rank when the run trains; return the time, and the incident once the run has recovered."""
    reached = local.status().newest_step + STEPS_BETWEEN_KILLS

    def is_well() -> bool:
        status = status_of(local)
        return status is not None and status.phase == RUN_PHASE_RUNNING and status.newest_step >= reached

    wait_until(is_well)
    pids = rank_pids(local.status())
    culprit = number % len(pids)
    killed_unix_s = time.time()
    os.kill(pids[culprit], signal.SIGKILL)
    found: list[Incident] = []

    def is_over() -> bool:
        found[:] = [incident for incident in local.control.incidents() if incident.detected_unix_s > killed_unix_s]
        return bool(found) and found[-1].state == INCIDENT_STATE_RECOVERED

    wait_until(is_over)
    assert found[-1].verdict.culprits[0] == culprit, found[-1].verdict.message
    return killed_unix_s, found[-1]


def cold_restart(checkpoints: Path, run: str, ranks: int) -> float:
    """Start the processes from nothing and return the seconds until all have ended their first step."""
    directory = CheckpointDirectory(checkpoints, kept=1)
    step = directory.committed()[-1]
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        socket.create_server(("127.0.0.1", 0)) as port,
    ):
        memory = SnapshotMemory(Path("/dev/shm"), Path(folder) / "slots", run, "bench")
        contexts = []
        for rank in range(ranks):
            slot = slot_for(directory.step_directory(step), rank, memory, ranks_on_node=ranks)
            read_shard(directory.step_directory(step), rank, slot, generation=1)
            box = Path(folder) / f"{rank}.box"
            nobody = f"unix:{folder}/nobody.sock"
            contexts.append(
                RankContext(run=run, generation=1, agent=nobody, black_box=str(box), restore_slot=str(slot))
            )
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
        port.close()
        started = time.monotonic()
        processes = [start_rank(rank, contexts, address, Path(folder)) for rank in range(ranks)]
        try:
            # A rank in the step after the first new one has ended its first optimizer step.
            wait_until(lambda: all(step_of(Path(context.black_box)) >= step + 2 for context in contexts))
            return time.monotonic() - started
        finally:
            for process in processes:
                process.kill()
                process.wait()
            memory.remove_all()


def start_rank(
    rank: int, contexts: list[RankContext], address: dict[str, str], folder: Path
) -> "subprocess.Popen[bytes]":
    ranks = str(len(contexts))
    environment = {
        **os.environ,
        **address,
        **contexts[rank].to_environment(),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "OMP_NUM_THREADS": "1",
    }
    with (folder / f"{rank}.log").open("wb") as log:
        command = [sys.executable, *trainer_command(len(contexts))[1:]]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def step_of(box: Path) -> int:
    try:
        return black_box.read(box).step
    except (OSError, ValueError):
        return -1


def measure(ranks: int, kills: int, colds: int, console: Console) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        options = LocalRunOptions(
            run="bench",
            command=trainer_command(ranks),
            ranks=ranks,
            directory=Path(folder),
            snapshot_every=1,
            checkpoint_every=CHECKPOINT_EVERY,
            preset=PresetName.FAST,
        )
        console.print(f"training with {ranks} ranks; one is killed {kills} times")
        with LocalRun(options) as local:
            wait_until(lambda: (status := status_of(local)) is not None and status.newest_checkpoint >= 0)
            recoveries = [kill_and_recover(local, number) for number in range(kills)]
            checkpoints = Path(local.checkpoints)
        console.print(f"cold restarts of the same {ranks} processes: {colds}")
        cold_s = [cold_restart(checkpoints, "bench", ranks) for _ in range(colds)]
    return {
        "kill": {
            "detected_s": median([incident.detected_unix_s - killed for killed, incident in recoveries]),
            "recovered_s": median([incident.recovered_unix_s - killed for killed, incident in recoveries]),
            "lost_steps": statistics.median([incident.lost_steps for _, incident in recoveries]),
        },
        "cold_restart_s": median(cold_s),
        "ranks": ranks,
        "kills": kills,
        "cold_restarts": colds,
    }


def median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=LAYOUTS, default=8, help="number of ranks (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="number of kills (default: %(default)s)")
    parser.add_argument("--colds", type=int, default=3, help="number of cold restarts (default: %(default)s)")
    parser.add_argument("--torchrun", action="store_true", help="measure faults under torchrun, with and without us")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    if arguments.torchrun:
        costs = torchrun_faults.measure(console.print)
        table = Table("", "launcher", "seconds", "steps lost", title="From the fault to the first step that is new")
        for fault, launchers in costs.items():
            for launcher, cost in launchers.items():
                table.add_row(fault, launcher, str(cost["continued_s"]), str(cost["steps_lost"]))
        console.print(table)
        if arguments.json:
            print(json.dumps(costs))
        return
    result = measure(arguments.ranks, arguments.kills, arguments.colds, console)
    kill = result["kill"]
    assert isinstance(kill, dict)
    table = Table("", "median", title="From the fault to the end of the next optimizer step")
    table.add_row("killed rank named", f"{kill['detected_s']:.3f} s")
    table.add_row("training again", f"{kill['recovered_s']:.2f} s")
    table.add_row("steps lost", f"{kill['lost_steps']:g}")
    table.add_row("cold restart of the same processes", f"{result['cold_restart_s']:.2f} s")
    console.print(table)
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
