import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast_hooks.hooks import Hooks
from holdfast_trainer.__main__ import main
from holdfast_trainer.data.batches import Batch, Batches

PACE_S = 0.15
WAIT_FOR_DATA_S = 0.3

Numbers = dict[str, Any]

ODD: Mapping[str, Callable[[Numbers], None]] = {
    "spike": lambda numbers: numbers.update({"loss": 10 * numbers["loss"]} if "loss" in numbers else {}),
    "explosion": lambda numbers: numbers.update(
        {"grad_norm": 1000 * numbers["grad_norm"]} if "grad_norm" in numbers else {}
    ),
    "no-loss": lambda numbers: numbers.pop("loss", None),
    "overflow": lambda numbers: numbers.update(overflow=True),
    "utilisation": lambda numbers: numbers.update({"mfu": 0.4} if "loss" in numbers else {}),
    "samples": lambda numbers: numbers.update({"samples": bytes(8)} if "samples" in numbers else {}),
}

hurry = Path(os.environ["PACED_HURRY"])
odd = [
    (kind, range(*map(int, steps.split("-"))))
    for kind, steps in (each.split("@") for each in os.environ.get("PACED_ODD", "").split() if each)
]
read, report = Batches.training, Hooks.report
newest = {"step": -1}


def paced(self: Batches, number: int) -> Batch:
    newest["step"] = number
    if not hurry.exists():
        time.sleep(PACE_S)
    if any(kind == "slow-data" and number in steps for kind, steps in odd):
        time.sleep(WAIT_FOR_DATA_S)
    return read(self, number)


def reporting(self: Hooks, **numbers: Any) -> None:
    for kind, steps in odd:
        if kind in ODD and newest["step"] in steps:
            ODD[kind](numbers)
        if kind == "logs" and newest["step"] in steps:
            self.log({"paced/step": newest["step"]})
    report(self, **numbers)


Batches.training = paced  # type: ignore[method-assign]
Hooks.report = reporting  # type: ignore[method-assign]
main(sys.argv[1:])
