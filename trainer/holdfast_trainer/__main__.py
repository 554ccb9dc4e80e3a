"""``python -m holdfast_trainer [--config FILE] [--model.dim 64 ...]``: train, as one rank of a run or alone.

With ``--dry-run``, this process tries one step of the ranks of the layout instead, without data or memory.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from holdfast_hooks import ConfigurationError
from holdfast_trainer import config
from holdfast_trainer.data import corpus


def main(arguments: Sequence[str]) -> None:
    """Train as ``arguments`` say. After a wrong configuration the process exits with the code CONFIGURATION."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dry-run", action="store_true")
    options, others = parser.parse_known_args(arguments)
    try:
        if options.dry_run:
            try_layout(config.from_arguments(others))
            return
        settings = config.load(others, world_size=int(os.environ.get("WORLD_SIZE", "1")))
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


def try_layout(settings: config.TrainerConfig) -> None:
    """Print the result of a dry run. Raises ConfigurationError with one line for each problem that it finds."""
    from holdfast_trainer.dry_run.layout_trial import dry_run

    result = dry_run(settings)
    if result.problems:
        raise ConfigurationError("\n".join(result.problems))
    print(result.summary, *(f"not tried: {line}" for line in result.not_covered), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
