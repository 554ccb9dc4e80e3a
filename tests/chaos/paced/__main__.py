import os
import sys
import time
from pathlib import Path

from holdfast_trainer.__main__ import main
from holdfast_trainer.data.batches import Batch, Batches

PACE_S = 0.15

hurry = Path(os.environ["PACED_HURRY"])
read = Batches.training


def paced(self: Batches, step: int) -> Batch:
    if not hurry.exists():
        time.sleep(PACE_S)
    return read(self, step)


Batches.training = paced  # type: ignore[method-assign]
main(sys.argv[1:])
