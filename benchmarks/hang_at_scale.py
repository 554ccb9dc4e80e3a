"""Measure how long the core takes to judge a hang of thousands of ranks, and how long a tick of a healthy run takes.

Runs a program of data, tensor, pipeline and expert parallelism until one rank stops at a random moment and all others
are blocked. Then shows the core the state of every node, as agents would report it. The tick that reaches the verdict
is timed as a whole: absorbing the states, the wait-for graph, the verdict and the commands that follow.

For a hang on devices it times how long the core takes to read the recorders of all ranks, and to judge them again in
the next tick.

    python benchmarks/hang_at_scale.py [--json]
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from holdfast_core import coordinator
from holdfast_core.diagnosis.devices.causes import Place
from holdfast_core.diagnosis.devices.diagnosis import RecorderDumps
from holdfast_core.model import CoreState, Observation
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import recorder_pb2 as recorder
from holdfast_proto.v1 import store_pb2 as store

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.simulation.machine import Machine
from tests.simulation.programs import Layout, training

LAYOUTS = {
    1_000: Layout(data=25, tensor=8, pipeline=5, experts=5, microbatches=8),
    10_000: Layout(data=125, tensor=8, pipeline=10, experts=5, microbatches=16),
}
ON_DEVICES = (1_000,)
TENSOR = 8
CALLS = 255
"""Calls of each recorder that are over, as many as an agent sends."""
RANKS_PER_NODE = 8
STARTED_UNIX_S = 1_000_000.0
WANTED_S = 2.0
"""Seconds that a verdict may take at ten thousand ranks."""


def observation(machine: Machine, stalled_s: float) -> Observation:
    nodes: dict[str, store.NodeState] = {}
    for rank, state in machine.states(stalled_s).items():
        name = f"node{rank // RANKS_PER_NODE:05}"
        node = nodes.setdefault(name, store.NodeState(node=name, instance="i", generation=1, ready=True))
        node.ranks.append(state)
    return Observation(nodes=nodes)


def trained(ranks: int) -> CoreState:
    """Return the core of a run that has trained long enough to learn its deadlines."""
    count = ranks // RANKS_PER_NODE
    spec = store.RunSpec(run="r", nodes=count, ranks_per_node=RANKS_PER_NODE, mode=store.MODE_ACT, instance="i")
    record = store.CoordinatorState(run="r", phase=store.RUN_PHASE_RUNNING, generation=1, newest_step=40)
    record.nodes.extend(f"node{number:05}" for number in range(count))
    state = coordinator.begin(spec, record)
    events = [
        store.Event(node=node, step_summary=store.StepSummary(step=step, generation=1, duration_s=1.0))
        for step in range(41, 45)
        for node in record.nodes
    ]
    return coordinator.step(state, STARTED_UNIX_S, Observation(events=tuple(events)))[0]


def timed_s(tick: Callable[[], object], repeats: int) -> float:
    """Return the median duration of a tick."""
    durations = []
    for _ in range(repeats):
        started = time.perf_counter()
        tick()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def measure(ranks: int, seed: int, repeats: int) -> dict[str, float | bool | int]:
    programs = training(LAYOUTS[ranks], steps=1)
    chance = random.Random(seed)
    culprit = chance.randrange(ranks)
    machine = Machine(programs, {culprit: chance.randrange(4, len(programs.calls[culprit]) - 2)}).run()
    healthy, hung = observation(machine, 0.2), observation(machine, 30.0)
    culprit_state = hung.nodes[f"node{culprit // RANKS_PER_NODE:05}"].ranks[culprit % RANKS_PER_NODE]
    culprit_state.thread_state = "R"
    now = STARTED_UNIX_S + 1.0
    state, _ = coordinator.step(trained(ranks), now, healthy)
    judged, _ = coordinator.step(state, now + 30.0, hung)
    verdicts = [incident.verdict for incident in judged.incidents.values()]
    return {
        "ranks": ranks,
        "named": [(verdict.kind, list(verdict.culprits)) for verdict in verdicts]
        == [(store.VERDICT_KIND_HUNG_COLLECTIVE, [culprit])],
        "healthy_turn_s": timed_s(lambda: coordinator.step(state, now + 0.1, healthy), repeats),
        "verdict_turn_s": timed_s(lambda: coordinator.step(state, now + 30.0, hung), repeats),
    }


def recorder_of(rank: int, ranks: int, *, waits: bool) -> recorder.RecorderDump:
    """Return the recorder of a rank that has trained with tensor and data parallelism, and then perhaps waits."""
    first = rank // TENSOR * TENSOR
    members = (range(ranks), range(first, first + TENSOR), range(rank % TENSOR, ranks, TENSOR))
    dump = recorder.RecorderDump(has_calls=True)
    for number, (name, group) in enumerate(zip(("0", f"t{first}", f"d{rank % TENSOR}"), members, strict=True)):
        dump.groups.add(
            name=name, description=str(number), member_runs=runs_of(group), has_status=True, last_enqueued=CALLS
        )
    for order in range(CALLS):
        done = recorder.CALL_STATE_COMPLETED
        dump.calls.add(order=order, group=1, seq=order + 1, op="nccl:all_reduce", state=done, retired=True)
    if waits:
        pending = recorder.CALL_STATE_SCHEDULED
        dump.calls.add(order=CALLS, group=1, seq=CALLS + 1, op="nccl:all_reduce", state=pending)
    return dump


def measure_devices(ranks: int, seed: int, repeats: int) -> dict[str, float | bool | int]:
    culprit = random.Random(seed).randrange(ranks)
    dumps = {rank: recorder_of(rank, ranks, waits=rank != culprit) for rank in range(ranks)}
    places = dict.fromkeys(dumps, Place.UNKNOWN)
    read = RecorderDumps(dumps, {})
    return {
        "ranks": ranks,
        "on_devices": True,
        "named": read.diagnosis(places, (), ranks).culprits == (culprit,),
        "read_s": timed_s(lambda: RecorderDumps(dumps, {}).diagnosis(places, (), ranks), repeats),
        "again_s": timed_s(lambda: read.diagnosis(places, (), ranks), repeats),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the moment (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="times that each tick is run (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON array as the last line")
    arguments = parser.parse_args()
    rows = [measure(ranks, arguments.seed, arguments.repeats) for ranks in LAYOUTS]
    table = Table("ranks", "rank named", "tick of a healthy run", "tick that names the hung rank")
    for row in rows:
        table.add_row(
            f"{row['ranks']:,}",
            "yes" if row["named"] else "NO",
            f"{row['healthy_turn_s'] * 1000:.0f} ms",
            f"{row['verdict_turn_s'] * 1000:.0f} ms",
        )
    devices = [measure_devices(ranks, arguments.seed, arguments.repeats) for ranks in ON_DEVICES]
    read = Table("ranks on devices", "rank named", "reading all recorders", "judging them again in a tick")
    for row in devices:
        again = f"{row['again_s'] * 1000:.1f} ms"
        read.add_row(f"{row['ranks']:,}", "yes" if row["named"] else "NO", f"{row['read_s'] * 1000:.0f} ms", again)
    Console().print(table, read)
    if arguments.json:
        print(json.dumps([*rows, *devices]))
    return 0 if all(row["named"] for row in (*rows, *devices)) and rows[-1]["verdict_turn_s"] < WANTED_S else 1


if __name__ == "__main__":
    sys.exit(main())
