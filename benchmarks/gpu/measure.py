"""Runs one measurement in this process and prints its outcome: ``python -m benchmarks.gpu.measure NAME``.

Without a GPU, the measurement is rehearsed: it runs on the CPU as far as it can, and counts as skipped.
"""

import importlib
import sys
import traceback

from benchmarks.gpu.outcome import Outcome
from benchmarks.gpu.run_part import print_outcome

NO_GPU = "torch sees no GPU"


class NeedsMoreError(Exception):
    """This machine lacks something that the measurement needs. The text says what."""


def outcome_of(name: str, *, has_gpu: bool) -> Outcome:
    """Run a measurement and return its outcome. One that raises has failed."""
    measurement = importlib.import_module(f"benchmarks.gpu.measurements.{name}")
    try:
        outcome: Outcome = measurement.measure("cuda" if has_gpu else "cpu")
    except NeedsMoreError as error:
        return Outcome("skipped", str(error) if has_gpu else f"{NO_GPU}; {error}")
    except Exception as error:  # noqa: BLE001 - the program reports every failure and continues with the next part
        traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {error}")
    if has_gpu or outcome.state == "failed":
        return outcome
    # Figures of a CPU would look like figures of a GPU.
    return Outcome("skipped", f"{NO_GPU}; rehearsed on the CPU")


def main() -> int:
    """Run the measurement that the command line names."""
    import torch

    (name,) = sys.argv[1:]
    outcome = outcome_of(name, has_gpu=torch.cuda.is_available())
    print_outcome(outcome)
    return int(outcome.state == "failed")


if __name__ == "__main__":
    sys.exit(main())
