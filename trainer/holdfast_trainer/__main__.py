"""``python -m holdfast_trainer [--config FILE] [--model.dim 64 ...]``: train, as one rank of a run or alone."""

import os
import sys
from collections.abc import Sequence

from holdfast_hooks import ConfigurationError
from holdfast_trainer import config
from holdfast_trainer.data import corpus


def main(arguments: Sequence[str]) -> None:
    """Train as ``arguments`` say. After a wrong configuration the process exits with the code CONFIGURATION."""
    try:
        settings = config.load(arguments, world_size=int(os.environ.get("WORLD_SIZE", "1")))
        text = corpus.prepare(settings.data, vocabulary=settings.model.vocabulary)
        # torch takes a second to import. A wrong configuration should be reported before that.
        from holdfast_trainer.rank_device import open_device
        from holdfast_trainer.train import train

        device = open_device(settings.distributed.device, backend=settings.distributed.backend)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            print(f"holdfast_trainer: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    train(settings, text, device)


if __name__ == "__main__":
    main(sys.argv[1:])
