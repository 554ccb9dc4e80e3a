"""Measure what Holdfast adds to each step of a framework's loop, with a live reporter and a real server.

    build/frameworks/bin/python -m benchmarks.framework_overhead [--only NAME] [--rounds N] [--json]
    build/torchtitan/bin/python -m benchmarks.framework_overhead --only torchtitan

A process runs the loop of a framework without Holdfast, and another one the same with an agent's context. The two take
turns. The loops of Trainer and Lightning train the smallest model. The others compute nothing, and make the calls that
Holdfast wraps: next to a real step, their cost would be lost in the noise of most machines. No snapshot is due. Of
several rounds the quietest counts for each of the two, and the figure is the difference of their median steps. The exit
code is 1 if a step takes longer by more than CEILING_US.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from benchmarks.framework_loops import LOOPS, PACKAGES, median_step_us
from holdfast_proto.rank_context import RankContext

CEILING_US = 150.0
"""Most microseconds that a step may take longer. The Trainer took 40 with no other work on the machine."""


def in_a_process(name: str, context: dict[str, str]) -> float:
    """Return the median step of a loop, in microseconds, in a process of its own."""
    environment = {**os.environ, **context, "HF_HUB_OFFLINE": "1", "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-m", "benchmarks.framework_overhead", "--child", name]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure(name: str, rounds: int) -> dict[str, float]:
    """Return the median step with and without Holdfast, and the difference, in microseconds."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        socket = f"{folder}/agent.sock"
        context = RankContext(
            run="bench",
            generation=0,
            agent=f"unix:{socket}",
            black_box=f"{folder}/black-box",
            observed=name == "ray",  # Ray starts its workers itself
        )
        command = [sys.executable, "-m", "benchmarks.hook_overhead", "--serve", socket]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdin is not None and agent.stdout is not None
            agent.stdout.readline()
            found = [(in_a_process(name, {}), in_a_process(name, context.to_environment())) for _ in range(rounds)]
            agent.stdin.close()
    alone, held = (min(values) for values in zip(*found, strict=True))
    return {"without_us": round(alone, 1), "with_us": round(held, 1), "added_us": round(held - alone, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LOOPS, action="append", help="framework to measure; several are possible")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--child", choices=LOOPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(median_step_us(options.child))
        return
    print(f"{'framework':<12}{'without us':>12}{'with us':>12}{'added us':>12}")
    figures = {}
    installed = [name for name in LOOPS if importlib.util.find_spec(PACKAGES.get(name, name)) is not None]
    for name in options.only or installed:
        one = figures[name] = measure(name, options.rounds)
        print(f"{name:<12}{one['without_us']:>12g}{one['with_us']:>12g}{one['added_us']:>12g}", flush=True)
    if options.json:
        print(json.dumps({"ceiling_us": CEILING_US, **figures}))
    sys.exit(any(one["added_us"] > CEILING_US for one in figures.values()))


if __name__ == "__main__":
    main()
