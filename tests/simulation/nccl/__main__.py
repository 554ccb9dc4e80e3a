"""Tries a detector on random cases and prints a table."""

import argparse
import importlib
from typing import cast

from tests.simulation.nccl.cases import cases
from tests.simulation.nccl.faults import FAULTS
from tests.simulation.nccl.judge import Detector, score


def main() -> None:
    """Read the command line, judge the cases, and print the table and the first wrong cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("detector", help="module:function, from a Case to a verdict")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--most-ranks", type=int, default=64)
    parser.add_argument(
        "--kind", action="append", choices=sorted(FAULTS), default=[], help="only this kind; repeatable"
    )
    given = parser.parse_args()
    module, _, name = given.detector.partition(":")
    detector = cast(Detector, getattr(importlib.import_module(module), name))
    result = score(detector, cases(given.seed, given.count, given.kind, given.most_ranks))
    print(result.table())
    for word, found in (("wrong", result.wrong), ("unnamed", result.unnamed[:20]), ("misjudged", result.misjudged)):
        for case in found:
            print(f"{word}: case {case.name!r}, {case.layout}, {case.world_size} ranks: {case.truth}")


if __name__ == "__main__":
    main()
