"""``python -m holdfast_trainer [--config FILE] [--model.dim 64 ...]``: train, as one rank of a run or alone."""

import os
import sys
from collections.abc import Sequence

from holdfast_hooks import ConfigurationError
from holdfast_trainer import config
from holdfast_trainer.data import corpus

EXIT_CONFIGURATION = 78
"""EX_CONFIG of sysexits.h: tells whoever started this rank that starting it again would not help."""


def main(arguments: Sequence[str]) -> None:
    """Train as ``arguments`` say. A wrong configuration ends the process with EXIT_CONFIGURATION."""
    try:
        settings = config.load(arguments, world_size=int(os.environ.get("WORLD_SIZE", "1")))
        text = corpus.prepare(settings.data, vocabulary=settings.model.vocabulary)
        # Not earlier: torch takes a second to import, and a wrong configuration should be told at once.
        from holdfast_trainer.device import open_device
        from holdfast_trainer.train import train

        device = open_device(settings.distributed.device, backend=settings.distributed.backend)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            print(f"holdfast_trainer: {line}", file=sys.stderr)
        sys.exit(EXIT_CONFIGURATION)
    train(settings, text, device)


if __name__ == "__main__":
    main(sys.argv[1:])
