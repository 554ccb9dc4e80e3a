"""``python -m holdfast_trainer [--config FILE] [--model.dim 64 ...]``: train, as one rank of a run or alone."""

import os
import sys
from collections.abc import Sequence

from holdfast_hooks import ConfigurationError, full_world_size
from holdfast_trainer import config
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data import corpus


def main(arguments: Sequence[str]) -> None:
    """Train as ``arguments`` say. After a wrong configuration the process exits with the code CONFIGURATION."""
    try:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        settings = config.load(arguments, world_size=full_world_size(world_size))
        _train(config.resized(settings, world_size))
    except ConfigurationError as error:
        for line in str(error).splitlines():
            print(f"holdfast_trainer: {line}", file=sys.stderr)
        sys.exit(error.exit_code)


def _train(settings: TrainerConfig) -> None:
    text = corpus.prepare(settings.data, vocabulary=settings.model.vocabulary)
    # torch takes a second to import. A wrong configuration should be reported before that.
    from holdfast_trainer.precision.fp8 import require_fp8
    from holdfast_trainer.rank_device import open_device
    from holdfast_trainer.train import train

    device = open_device(settings.distributed.device, backend=settings.distributed.backend)
    if settings.precision.fp8:
        require_fp8(device.torch_device)  # before the ranks meet: their messages would hide the refusal
    if text.overlap is not None and os.environ.get("RANK", "0") == "0":
        print(f"contamination: {text.overlap}", flush=True)
    train(settings, text, device)


if __name__ == "__main__":
    main(sys.argv[1:])
